"""Gain of warm starts from earlier runs.

    python -m benchmarks.search.warm_start --truth DIR [--target TEXT] [--sample N] [--no-warm]

Each landscape of a recorded sweep is searched cold; with ``--warm-start`` from the first trials of
a search of another landscape; and with these trials in the archive, from which the search's own
trials choose. The cost model's constants are fitted without the models of both landscapes.
"""

from __future__ import annotations

import argparse
import json
import random
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from analysis.run.fold import Run
from benchmarks.printing import machine
from benchmarks.published.read import read_table
from benchmarks.search.games import REPLAYED, LeftOut, policy_for
from search_spaces import SearchSpace
from workflows.replay.landscape import Landscape
from workflows.replay.landscapes import landscapes
from workflows.replay.play import NEAR, Played, play

HOWS = ("cold", "warm", "archive")
EARLIER = 16  # trials of the earlier run
NODES, MODEL, MACHINE = "other nodes", "other model", "other machine"


@dataclass(frozen=True)
class Known:
    """A landscape with its table's cost models."""

    landscape: Landscape
    models: LeftOut

    @property
    def model(self) -> str:
        return self.landscape.model

    @property
    def machine(self) -> str:
        return self.landscape.space.cluster.name

    @property
    def framework(self) -> str | None:
        return self.landscape.space.trainer.framework

    @property
    def nodes(self) -> int:
        return int(self.landscape.space.parameters["num_nodes"].values[0])

    def far_from(self, other: Known) -> tuple[float, float]:
        """Distance in nodes, then in parameters, as log ratios."""
        shapes = [known.landscape.space.model for known in (self, other)]
        parameters = [shape.num_parameters for shape in shapes if shape is not None]
        return _ratio(self.nodes, other.nodes), _ratio(*parameters)


def _ratio(a: float, b: float) -> float:
    return abs(float(np.log(a / b)))


@dataclass(frozen=True)
class Pair:
    """A landscape to search, one that was searched before, and in what they differ."""

    differs: str
    target: Known
    source: Known


@dataclass(frozen=True)
class Compared:
    """Effect of a warm start; trials are counted until one is within 5 % of the best."""

    differs: str
    target: str
    source: str
    seed: int
    trials: Mapping[str, int]  # by how it started
    failed_share: Mapping[str, float]


def pairs(known: Sequence[Known]) -> Iterator[Pair]:
    """Every landscape with the nearest of those that differ from it in one way.

    They have the next smaller or larger number of nodes for the same model on the same machine; or
    another model on it; or the same model on another machine. The framework is the same.
    """
    for target in known:
        groups: dict[tuple[str, bool], list[Known]] = {}
        for other in known:
            if way := _differs(target, other):
                groups.setdefault((way, way == NODES and other.nodes < target.nodes), []).append(
                    other
                )
        for (way, _), sources in groups.items():
            yield Pair(way, target, min(sources, key=target.far_from))


def _differs(target: Known, other: Known) -> str | None:
    if target.framework != other.framework:
        return None
    if target.machine != other.machine:
        return MACHINE if target.model == other.model else None
    if target.model != other.model:
        return MODEL
    return NODES if target.nodes != other.nodes else None


@dataclass
class Searches:
    """Plays searches, each cold search only once."""

    seed: int
    hows: Sequence[str] = HOWS
    cold: dict[tuple[str, frozenset[str]], Played] = field(default_factory=dict)

    def compare(self, pair: Pair) -> Compared:
        target, source = pair.target, pair.source
        held = frozenset((target.model, source.model))
        earlier = Run(Path())
        first = self._cold(source, held).run.trials
        earlier.trials = {number: trial for number, trial in first.items() if number <= EARLIER}
        cold = self._cold(target, held)
        lesson = [(earlier, source.landscape.space)]
        ways = {"warm": (lesson, []), "archive": ([], lesson)}
        played = {"cold": cold} | {
            how: self._play(target, held, *way) for how, way in ways.items() if how in self.hows
        }
        size = len(target.landscape.configs)
        return Compared(
            pair.differs,
            target.landscape.key,
            source.landscape.key,
            self.seed,
            {how: one.trials_to(NEAR) or size + 1 for how, one in played.items()},
            {how: one.failed_share() for how, one in played.items()},
        )

    def _cold(self, known: Known, held: frozenset[str]) -> Played:
        at = (known.landscape.key, held)
        if at not in self.cold:
            self.cold[at] = self._play(known, held, [])
        return self.cold[at]

    def _play(
        self,
        known: Known,
        held: frozenset[str],
        earlier: Sequence[tuple[Run, SearchSpace]],
        offered: Sequence[tuple[Run, SearchSpace]] = (),
    ) -> Played:
        model = known.models.without(*held)
        policy = policy_for(known.landscape, "meshtune", self.seed, model, earlier, offered)
        return play(known.landscape, policy, self.seed, until=NEAR)


def lines(compared: Sequence[Compared]) -> Iterator[str]:
    """One row for each way in which the earlier run differed, and one for all."""
    hows = [*compared[0].trials]
    more = [f"{how} - cold: median, mean, worst" for how in hows[1:]]
    head = ["earlier run of", "pairs", "trials to 5 %, cold: geometric mean / worst", *hows[1:]]
    yield f"| {' | '.join([*head, *more])} | failed of 16: {', '.join(hows)} |"
    yield "|---" * (4 + 2 * len(more)) + "|"
    for differs in (NODES, MODEL, MACHINE, "all"):
        some = [c for c in compared if differs in (c.differs, "all")]
        if some:
            yield f"| {differs} | {len(some)} | {_row(some, hows)} |"


def _row(some: Sequence[Compared], hows: Sequence[str]) -> str:
    trials = {how: np.array([one.trials[how] for one in some]) for how in hows}
    more = [trials[how] - trials["cold"] for how in hows[1:]]
    failed = [np.mean([one.failed_share[how] for one in some]) for how in hows]
    cells = [
        *(_trials(trials[how]) for how in hows),
        *(f"{np.median(m):+g}, {m.mean():+.2f}, {m.max():+d}" for m in more),
        ", ".join(f"{100 * share:.1f}" for share in failed) + " %",
    ]
    return " | ".join(cells)


def _trials(counts: Iterable[int]) -> str:
    values = np.array([*counts])
    return f"{np.exp(np.log(values).mean()):.2f} / {values.max()}"


def sweeps(truth: Path) -> Iterator[Known]:
    """The largest landscape of each model, machine and number of nodes, of all sweeps."""
    for path in sorted(truth.glob("*.csv")):
        table = read_table(path)
        if table is None or table.form not in REPLAYED:
            continue
        models, largest = LeftOut(table), dict[tuple[str, str, int], Known]()
        for landscape in landscapes(table):
            one = Known(landscape, models)
            other = largest.setdefault((one.model, one.machine, one.nodes), one)
            if len(landscape.configs) > len(other.landscape.configs):
                largest[one.model, one.machine, one.nodes] = one
        yield from (x for x in largest.values() if len(x.landscape.configs) >= EARLIER)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search.warm_start", description=__doc__
    )
    parser.add_argument("--truth", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=1, metavar="N")
    parser.add_argument("--target", default="", metavar="TEXT", help="in a landscape's name")
    parser.add_argument("--sample", type=int, metavar="N", help="so many pairs, drawn")
    parser.add_argument("--no-warm", action="store_true", help="cold and with the archive only")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    print(machine([f"{arguments.seeds} seed(s)"]), flush=True)
    known = [*sweeps(arguments.truth)]
    every = [pair for pair in pairs(known) if arguments.target in pair.target.landscape.key]
    if arguments.sample:
        every = random.Random(0).sample(every, min(arguments.sample, len(every)))
    hows = [how for how in HOWS if how != "warm" or not arguments.no_warm]
    compared = []
    for seed in range(arguments.seeds):
        searches = Searches(seed, hows)
        for pair in every:
            compared.append(one := searches.compare(pair))
            told = ", ".join(f"{trials} {how}" for how, trials in one.trials.items())
            print(f"{one.target} after {one.source}: {told}", flush=True)
    if not compared:
        parser.error(f"--truth {arguments.truth}: no recorded sweep there")
    print("", *lines(compared), sep="\n")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(c) for c in compared], indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
