"""Judges a change of the search, in minutes on one core.

``python -m benchmarks.search.judge --truth DIR`` plays searches until the stop rule ends them and
one trial is within 5 % of the best, on every second landscape of the sweeps that record failures.
Cases: a known framework, an unknown one, an inverted cost model, unpriced parameters with and
without probes of their values, noisy runs, and, for comparison, other policies. With ``--near`` a
search ends with the first trial within 5 %, and figures at the stop are at that trial. The cost of
probes is counted in trials, by node-hours.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np

from analysis.cost.model import CostModel
from analysis.prediction.pricing import Pricing
from analysis.prediction.start_up import StartUp
from analysis.run.fold import Run
from analysis.sweeps.record import Table
from benchmarks.published.read import read_table
from benchmarks.search.games import REPLAYED, LeftOut, Unseen, forgotten, policy_for, unread
from benchmarks.search.oppa import OppaPolicy
from benchmarks.search.probed import STEPS, node_seconds, size, told_by_probes
from benchmarks.search.varied import disturbed, with_unpriced
from benchmarks.search.wrong_models import inverted, start_from, wrong
from workflows.optimizer.policy import Policy, Problem, Proposal
from workflows.replay.landscape import Landscape
from workflows.replay.landscapes import landscapes
from workflows.replay.play import NEAR, NEARER, Played, play
from workflows.search.budget import Budget

MOST_TRIALS = 60  # after which a search counts as ended
FIRST = 16  # trials whose failures are counted
BINS = (0.0, 0.02, 0.2, 0.5, 0.8, 0.98, 1.0)  # of the stated probability to fit


@dataclass
class ToTheEnd(Policy):
    """Another policy's proposals until the stop rule would end its search and one is good."""

    inner: Policy
    landscape: Landscape
    least: int = 0  # trials in any case
    until_good: bool = False  # whether to end with the first good trial, whatever the stop rule
    ended_after: int | None = None  # trials after which the stop rule would have ended the search

    def propose(self, run: Run, max_nodes: int) -> Proposal | None:
        good = any(self.landscape.share(t.config) >= 1 - NEAR for t in run.trials.values())
        if good and self.until_good:
            return None
        proposal = self.inner.propose(run, max_nodes)
        if proposal is None:
            return None
        budget = Budget.of(self.landscape.space)
        if self.ended_after is None and budget.not_worth_it(proposal.expected, run):
            self.ended_after = len(run.trials)
        enough = good and len(run.trials) >= self.least and self.ended_after is not None
        return None if enough else proposal


@dataclass(frozen=True)
class Game:
    """One search of one landscape.

    Attributes:
        key: of the landscape.
        played: its trials.
        ended_after: trials until the stop rule ended it.
        nodes_s: share of the first trials' time that failures took.
        stated, fits: of every configuration, the probability to fit before any trial, and whether
            it did.
        for_probes: node-seconds of the probes before it, over those of its mean trial.
    """

    key: str
    played: Played
    ended_after: int
    nodes_s: float
    stated: np.ndarray
    fits: np.ndarray
    for_probes: float = 0.0

    def __str__(self) -> str:
        shares = " ".join(f"{100 * share:.0f}" for share in self.played.shares)
        return (
            f"{self.key}: {self.trials:g} trials to 5 %; ended after {self.ended_after}, "
            f"{100 * self.regret:.1f} % from the best; {shares}"
        )

    @property
    def trials(self) -> float:
        """Trials until one was near the best, plus the cost of the probes in trials."""
        near = self.played.trials_to(NEAR) or len(self.played.shares) + 1
        return round(near + self.for_probes, 2)

    @property
    def regret(self) -> float:
        return 1 - self.played.best_of(self.ended_after)


ModelOf = Callable[[Landscape, int], CostModel | None]


def game(
    landscape: Landscape,
    seed: int,
    model_of: ModelOf,
    policy: str = "meshtune",
    until_good: bool = False,
    probes_on: Landscape | None = None,
) -> Game:
    """Play one search to its end, or until a trial is good.

    ``probes_on`` is the landscape that answers its probes.
    """
    model = model_of(landscape, seed)
    if policy == "oppa":
        inner: Policy = OppaPolicy(Problem(landscape.space, seed, only=landscape.configs))
    else:
        inner = policy_for(landscape, policy, seed, model)
    probes_s = told_by_probes(inner.problem, probes_on) if probes_on else 0.0
    chosen = ToTheEnd(inner, landscape, until_good=until_good)
    played = play(landscape, chosen, seed, until=None, max_trials=MOST_TRIALS)
    ended = chosen.ended_after or len(played.shares)
    pricing = Pricing(landscape.space)
    if model is not None:
        start_from(pricing, model)
    stated = pricing.supposing().predict(landscape.configs).may_fit
    fits = np.array([tuple(c.items()) in landscape.medians for c in landscape.configs])
    trial_s = node_seconds(landscape, played.run.trials.values()).mean()
    spent = _failed_time(landscape, played)
    return Game(landscape.key, played, ended, spent, stated, fits, probes_s / trial_s)


def _failed_time(landscape: Landscape, played: Played) -> float:
    """Share of the first trials' seconds that failures took; all trials are equally wide."""
    start_s = StartUp.expected(landscape.space).base_s
    first = [*played.run.trials.values()][:FIRST]
    taken = [start_s + STEPS * t.result["step_time_s"]["median"] if t.ok else 0.0 for t in first]
    return sum(start_s for t in first if not t.ok) / (
        sum(taken) + sum(start_s for t in first if not t.ok)
    )


# ---- printing ----


def row(name: str, games: Sequence[Game]) -> str:
    """A line of figures over all games of a case."""
    to5 = [g.trials for g in games]
    regrets = [g.regret for g in games]
    inside = [i for g in games for i in g.played.in_interval()]
    stated = np.concatenate([g.stated for g in games])
    ran = np.concatenate([g.fits for g in games])
    worst = max(games, key=lambda g: g.trials)
    asks = [g.played.seconds / max(len(g.played.shares), 1) for g in games]
    geometric = float(np.exp(np.mean(np.log(to5))))
    ends = statistics.median(g.ended_after for g in games)
    coverage = f"{100 * np.mean(inside):.0f} %" if inside else "-"
    return (
        f"| {name} | {geometric:.2f} / {max(to5):g} | {ends:g} "
        f"| {sum(r > NEARER for r in regrets)} of {len(games)}, {100 * np.mean(regrets):.2g} %, "
        f"{100 * max(regrets):.2g} % | {coverage} "
        f"| {100 * np.mean(stated[ran] < 0.5):.2g} % | {bins(stated, ran)} "
        f"| {100 * np.mean([g.nodes_s for g in games]):.2g} % "
        f"| {np.mean(asks):.2f} | {worst.key} |"
    )


HEAD = (
    "| case | to 5 %: geometric mean / worst | trials at the stop | regret there: above 1 %, mean, "
    "worst | in the interval | wrongly pruned | ran, of stated "
    + ", ".join(f"{a:g}-{b:g}" for a, b in pairwise(BINS))
    + " | failed time | s per ask | worst landscape |\n"
    + "|---" * 10
    + "|"
)


def bins(stated: np.ndarray, ran: np.ndarray) -> str:
    """Each bin's mean and the share that ran, in percent, and its size.

    Sweeps hardly distinguish crashes from a lack of memory: in the last bin most failures have
    another cause.
    """
    at = np.digitize(stated, BINS[1:-1])
    parts = []
    for i in range(len(BINS) - 1):
        mine = at == i
        parts.append(
            f"{100 * stated[mine].mean():.0f}:{100 * ran[mine].mean():.0f} of {mine.sum()}"
            if mine.any()
            else "-"
        )
    return ", ".join(parts)


def cases(
    table: Table, tables: Sequence[Table], until_good: bool = False
) -> dict[str, Callable[[Landscape, int], Game]]:
    """The cases to play, by name."""
    played = partial(game, until_good=until_good)
    models, unseen = LeftOut(table), Unseen.among(table, tables)
    framework = str(table.framework[0])
    small = min(landscapes(table), key=size)  # of one table, so that it is the same trainer
    with forgotten(framework):
        nameless = Unseen.among(table, tables)

    def left_out(landscape: Landscape, _: int) -> CostModel:
        return models.without(landscape.model)

    def upside_down(landscape: Landscape, seed: int) -> CostModel:
        return wrong(landscape, inverted, seed, models.without(landscape.model))

    def unknown(landscape: Landscape, seed: int, probes_on: Landscape | None = None) -> Game:
        with forgotten(framework):
            fresh = unread(landscape)
            return played(fresh, seed, lambda *_: nameless.model, probes_on=probes_on)

    return {
        "known": lambda landscape, seed: played(landscape, seed, left_out),
        "unseen": lambda landscape, seed: played(landscape, seed, lambda *_: unseen.model),
        "unknown": unknown,
        "inverted": lambda landscape, seed: played(landscape, seed, upside_down),
        "unpriced": lambda landscape, seed: played(with_unpriced(landscape, seed), seed, left_out),
        "unknown and unpriced": lambda landscape, seed: unknown(
            with_unpriced(landscape, seed), seed
        ),
        "unknown and unpriced with probes": lambda landscape, seed: unknown(
            with_unpriced(landscape, seed), seed, with_unpriced(small, seed)
        ),
        "noise 5 %": lambda landscape, seed: played(
            disturbed(landscape, 0.05, seed), seed, left_out
        ),
        "noise 20 %": lambda landscape, seed: played(
            disturbed(landscape, 0.2, seed), seed, left_out
        ),
        "cost-model": lambda landscape, seed: played(landscape, seed, left_out, "cost-model"),
        "oppa": lambda landscape, seed: played(landscape, seed, left_out, "oppa"),
        "deephyper": lambda landscape, seed: played(landscape, seed, left_out, "deephyper"),
        "random": lambda landscape, seed: played(landscape, seed, left_out, "random"),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search.judge", description=__doc__)
    parser.add_argument("--truth", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=1, metavar="N")
    parser.add_argument("--every", type=int, default=2, metavar="N", help="landscape is played")
    parser.add_argument("--cases", default="known,unknown,inverted,unpriced", metavar="NAMES")
    parser.add_argument("--near", action="store_true", help="end at the first trial within 5 %%")
    parser.add_argument("--each", action="store_true", help="print each game")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    read_all = [read_table(path) for path in sorted(arguments.truth.glob("*.csv"))]
    tables = [table for table in read_all if table is not None and len(table)]
    for table in tables:
        if table.form not in REPLAYED or not table.failed.any():
            continue
        recorded = [*landscapes(table)][:: arguments.every]
        every = cases(table, tables, arguments.near)
        print(f"{table.name}: {len(recorded)} landscapes\n\n{HEAD}", flush=True)
        for name in arguments.cases.split(","):
            games = []
            for landscape, seed in product(recorded, range(arguments.seeds)):
                games.append(every[name](landscape, seed))
                if arguments.each:
                    print(f"    {name}: {games[-1]}", flush=True)
            print(row(name, games), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
