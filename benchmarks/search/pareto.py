"""Trials until searches find a Pareto front: ``python -m benchmarks.search.pareto --truth DIR``.

Recorded sweeps are searched for high throughput and low memory, and, with all numbers of nodes in
one landscape, for high throughput on few nodes. A search scores the area that its front dominates
(the hypervolume of Zitzler and Thiele 1999, of the objectives' logarithms), over that of the
landscape's own front. The cost model's constants are fitted without the landscape's model.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.cost.constants import Array
from analysis.pareto import non_dominated
from analysis.prediction.goal import merits
from analysis.run.fold import Run
from analysis.run.trial import Trial
from analysis.sweeps.read import read_tables
from benchmarks.printing import machine
from benchmarks.published.read import read_table
from benchmarks.search.games import REPLAYED, LeftOut, policy_for
from search_spaces import Objective
from workflows.replay.landscape import Landscape
from workflows.replay.landscapes import landscapes

POLICIES: tuple[str, ...] = ("meshtune", "deephyper", "random")
AFTER = (8, 16, 32)  # trials
EVERY = 3  # one of so many landscapes of one number of nodes is played
MARGIN = 0.1  # of the front's range, by which the reference point is below the front's minimum
MEMORY, NODES = Objective("peak_memory_bytes", False), Objective("num_nodes", False)


@dataclass(frozen=True)
class Sought:
    """A landscape with two objectives, and cost models fitted to other landscapes."""

    landscape: Landscape
    models: LeftOut

    @property
    def second(self) -> str:
        return self.landscape.space.objectives[1].key

    def answer(self, config: Mapping[str, Any]) -> Trial:
        """The repeat of median speed."""
        every = self.landscape.answers[tuple(config.items())]
        ran = sorted((a for a in every if a.ok), key=lambda a: a.objective or 0.0)
        return ran[(len(ran) - 1) // 2] if ran else every[0]

    def figures(self, config: Mapping[str, Any]) -> dict[str, float] | None:
        """Both objectives; None if the configuration failed."""
        answer = self.answer(config)
        if not answer.ok:
            return None
        known = {"num_nodes": self.landscape.space.num_nodes(config), **answer.result}
        return {
            "tokens_per_second": answer.objective or 0.0,
            self.second: float(known[self.second]),
        }

    def reached(self, configs: Sequence[Mapping[str, Any]]) -> Array:
        """Objectives of the configurations that ran, shape (n, 2); more is better."""
        rows = [[*f.values()] for config in configs if (f := self.figures(config))]
        return merits(self.landscape.space.objectives, np.array(rows).reshape(-1, 2))


def sought(truth: Path) -> Iterator[Sought]:
    """Landscapes of all sweeps with measured memory; also over several numbers of nodes."""
    for path in sorted(truth.glob("*.csv")):
        table = read_table(path)
        if table is None or table.form not in REPLAYED or not np.isfinite(table.peak_bytes).any():
            continue
        models = LeftOut(table)
        for landscape in [*landscapes(table)][::EVERY]:
            yield _of_two(landscape, MEMORY, models)
        if len(np.unique(table.nodes)) > 1:
            for whole in read_tables(path, ("model",)):
                yield from (_of_two(landscape, NODES, models) for landscape in landscapes(whole))


def _of_two(landscape: Landscape, second: Objective, models: LeftOut) -> Sought:
    space = replace(landscape.space, more_objectives=(second,))
    return Sought(replace(landscape, space=space), models)


def play(of: Sought, name: str, seed: int, trials: int = AFTER[-1]) -> list[dict[str, Any]]:
    """The configurations that a search tries, in order."""
    model = of.models.without(of.landscape.model) if name == "meshtune" else None
    policy = policy_for(of.landscape, name, seed, model)
    objectives = of.landscape.space.objectives
    run = Run(Path(), goals=[(one.key, one.maximize) for one in objectives])
    for number in range(1, min(trials, len(of.landscape.configs)) + 1):
        proposal = policy.propose(run, 2**31)
        figures = of.figures(proposal.config)
        trial = Trial(number, proposal.config, 0.0, proposal.by, proposal.why, proposal.expected)
        trial.ended_t, trial.kind = 0.0, "ok" if figures else "oom"
        if figures:
            trial.objective, trial.objectives = figures["tokens_per_second"], figures
            trial.result = of.answer(proposal.config).result
        run.trials[number] = trial
    return [trial.config for trial in run.trials.values()]


def area(found: Array, reference: Array) -> float:
    """The area that points, shape (n, 2), dominate above the reference; more is better."""
    above = found[(found > reference).all(axis=1)]
    front = above[non_dominated(above)]
    front = front[np.argsort(-front[:, 0])]  # so that the second objective rises
    steps = np.diff(front[:, 1], prepend=reference[1])
    return float(((front[:, 0] - reference[0]) * steps).sum())


def shares(of: Sought, tried: Sequence[Mapping[str, Any]]) -> list[float]:
    """Area of the front after 8, 16 and 32 trials, over that of the landscape's own."""
    every = of.reached(of.landscape.configs)
    front = every[non_dominated(every)]
    reference = front.min(axis=0) - MARGIN * np.maximum(np.ptp(front, axis=0), 0.1)
    whole = area(every, reference)
    return [area(of.reached(tried[:count]), reference) / whole for count in AFTER]


def lines(played: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A row for each second objective and policy: mean shares, and the worst of the last."""
    heads = " | ".join(f"after {count}" for count in AFTER)
    yield f"| tokens_per_second, and | policy | landscapes | {heads} | worst |"
    yield "|---" * (4 + len(AFTER)) + "|"
    for second in dict.fromkeys(row["second"] for row in played):
        for policy in dict.fromkeys(row["policy"] for row in played):
            rows = [r for r in played if (r["second"], r["policy"]) == (second, policy)]
            reached = np.array([row["shares"] for row in rows])
            means = " | ".join(f"{100 * share:.1f} %" for share in reached.mean(axis=0))
            count = len({row["landscape"] for row in rows})
            worst = f"{100 * reached[:, -1].min():.1f} %"
            yield f"| {second} | {policy} | {count} | {means} | {worst} |"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search.pareto", description=__doc__)
    parser.add_argument("--truth", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    print(machine([f"{arguments.seeds} seed(s)"]), flush=True)
    played = []
    for of in sought(arguments.truth):
        for policy in POLICIES:
            for seed in range(arguments.seeds):
                found = shares(of, play(of, policy, seed))
                one = {"landscape": of.landscape.key, "second": of.second, "policy": policy}
                played.append({**one, "seed": seed, "shares": found})
                print(*one.values(), *(f"{share:.3f}" for share in found), flush=True)
    if not played:
        parser.error(f"--truth {arguments.truth}: no sweep with measured memory there")
    print("", *lines(played), sep="\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(played, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
