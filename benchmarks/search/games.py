"""Searches replayed on recorded landscapes, with cost models that have not seen them."""

from __future__ import annotations

import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from analysis.cost.memory_fit import Measurements
from analysis.cost.model import CostModel
from analysis.prediction.pricing import Pricing
from analysis.run.fold import Run
from analysis.sweeps.record import Table
from benchmarks.cost_model.transfer import parts_of, transferred
from benchmarks.search.wrong_models import start_from, wrong
from search_spaces import SearchSpace
from search_spaces.known import FRAMEWORKS, framework_named
from workflows.optimizer.policy import Policy
from workflows.optimizer.registry import make_policy
from workflows.replay.landscape import Landscape
from workflows.replay.play import NEAR, Played, play, summary
from workflows.search.budget import Budget

REPLAYED = ("sweep", "vtrain")  # forms of tables in which configurations compete
STOP_TRIALS = 60  # after which a search that has not ended counts as ended


@dataclass
class LeftOut:
    """Cost models of a table, each fitted without some of the table's language models."""

    table: Table
    fitted: dict[frozenset[str], CostModel] = field(default_factory=dict)

    def without(self, *models: str) -> CostModel:
        """The cost model fitted to the rows of all other models; without any, the defaults."""
        held = frozenset(models)
        if held not in self.fitted:
            table, rest = self.table, self.table[~np.isin(self.table.model, models)]
            model = CostModel(
                table.clusters[str(table.cluster[0])], FRAMEWORKS[str(table.framework[0])]
            )
            measurements = Measurements(rest.jobs, rest.step_time_s, rest.peak_bytes, rest.failed)
            self.fitted[held] = model.calibrated(measurements) if len(rest) else model
        return self.fitted[held]


def policy_for(
    landscape: Landscape,
    policy: str,
    seed: int,
    model: CostModel | None = None,
    earlier: Sequence[tuple[Run, SearchSpace]] = (),
    offered: Sequence[tuple[Run, SearchSpace]] = (),
) -> Policy:
    """A policy of ``meshtune search`` on a landscape.

    Args:
        model: its constants replace the cost model's, such as those of a fit without the
            landscape's model; machine and framework stay the landscape's.
        earlier: runs, and their spaces, that the cost model learns from first.
        offered: likewise, but used only if they make the trials more probable.
    """
    if pricing := Pricing.of(landscape.space):
        if model is not None:
            start_from(pricing, model)
        for run, space in earlier:
            pricing.learn(run, Pricing(space))
        for run, space in offered:
            pricing.offer(space.name, run, Pricing(space))
    return make_policy(landscape.space, seed, policy, pricing=pricing, only=landscape.configs)


@contextmanager
def forgotten(framework: str) -> Iterator[None]:
    """Hide the record of a framework, so that searches have to infer its habits."""
    record = FRAMEWORKS.pop(framework)
    try:
        yield
    finally:
        FRAMEWORKS[framework] = record


def unread(landscape: Landscape) -> Landscape:
    """The same landscape with a new space: a space caches the framework's record."""
    return replace(landscape, space=replace(landscape.space))


Game = Callable[[Landscape, int], Played]
_GAMES: list[Callable[[], list[Played]]] = []  # inherited by fork: rules cannot be pickled


def _play(index: int) -> list[Played]:
    return _GAMES[index]()


def play_every(recorded: Sequence[Landscape], game: Game, seeds: int) -> dict[str, list[Played]]:
    """A game on every landscape with every seed, on all cores; by the landscape's key."""
    _GAMES[:] = [partial(_all_seeds, game, landscape, seeds) for landscape in recorded]
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        played = pool.map(_play, range(len(recorded)), chunksize=1)
    return dict(zip([landscape.key for landscape in recorded], played, strict=True))


def every_game(recorded: Sequence[Landscape], game: Game, seeds: int) -> dict[str, Any]:
    """Figures of a game on every landscape with every seed."""
    return summary(play_every(recorded, game, seeds), {x.key: len(x.configs) for x in recorded})


def _all_seeds(game: Game, landscape: Landscape, seeds: int) -> list[Played]:
    return [game(landscape, seed) for seed in range(seeds)]


def replayed(
    recorded: Sequence[Landscape],
    models: LeftOut | Unseen,
    policy: str,
    seeds: int,
    parallel: int = 1,
) -> dict[str, Any]:
    """Figures of a policy; see ``workflows.replay.play.summary``."""

    def game(landscape: Landscape, seed: int) -> Played:
        guided = policy in ("meshtune", "cost-model")
        model = models.without(landscape.model) if guided else None
        return play(landscape, policy_for(landscape, policy, seed, model), seed, parallel)

    return every_game(recorded, game, seeds)


@dataclass(frozen=True)
class Unseen:
    """The cost model of a table's framework without rows of the framework or the table's models.

    A search with a new framework starts like this: with constants of the GPU from other frameworks.
    """

    table: Table
    model: CostModel

    @classmethod
    def among(cls, table: Table, tables: Sequence[Table]) -> Unseen:
        cluster = table.clusters[str(table.cluster[0])]
        habits = framework_named(str(table.framework[0]))
        others = [t[~np.isin(t.model, table.model)] for t in tables if t.name != table.name]
        parts = [part for part in parts_of(others) if part.framework[0] != habits.name]
        return cls(table, CostModel(cluster, habits, transferred(parts, cluster, habits)))

    def without(self, _: str) -> CostModel:
        return self.model


def against_wrong(
    recorded: Sequence[Landscape],
    models: LeftOut,
    seeds: int,
    permutation: Callable[..., Any],
    plain: Mapping[str, Any],
) -> dict[str, Any]:
    """Figures of the search with a wrong cost model, with its ratio to plain DeepHyper."""

    def game(landscape: Landscape, seed: int) -> Played:
        model = wrong(landscape, permutation, seed, models.without(landscape.model))
        return play(landscape, policy_for(landscape, "meshtune", seed, model), seed, until=NEAR)

    figures = every_game(recorded, game, seeds)
    figures["overall"]["ratio_to_deephyper"] = statistics.median(
        own["trials_to_5pct"] / other["trials_to_5pct"]
        for own, other in zip(figures["landscapes"], plain["landscapes"], strict=True)
    )
    return figures


def by_stop_rule(
    recorded: Sequence[Landscape], models: LeftOut, seeds: int
) -> dict[str, dict[str, list[float]]]:
    """Results of a search without a budget, ended by its stop rule, for each seed.

    Returns:
        By landscape: ``trials`` until it ended, and ``reached``, its share of the best by then.
    """

    def game(landscape: Landscape, seed: int) -> Played:
        chosen = policy_for(landscape, "meshtune", seed, models.without(landscape.model))
        played = play(landscape, chosen, seed, until=None, max_trials=STOP_TRIALS)
        budget = Budget.of(landscape.space)
        before = Run(Path())
        for number, trial in played.run.trials.items():
            if budget.not_worth_it(trial.expected, before):
                return Played(shares=played.shares[: number - 1])
            before.trials[number] = trial
        return played

    games = play_every(recorded, game, seeds)
    return {
        key: {
            "trials": [float(len(played.shares)) for played in every],
            "reached": [max(played.shares) for played in every],
        }
        for key, every in games.items()
    }
