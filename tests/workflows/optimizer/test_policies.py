"""Every built-in policy keeps the contract; others are found by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.run.fold import Run
from foundation.registry import RegistryError
from meshtune.testing.policies import UNPRICED, PolicyContract
from search_spaces import SearchSpace, load_space
from workflows.optimizer.builtin import DeepHyperPolicy, RandomPolicy
from workflows.optimizer.model_guided import CostModelPolicy, MeshtunePolicy
from workflows.optimizer.optuna import OptunaPolicy
from workflows.optimizer.policy import Policy, Problem
from workflows.optimizer.registry import POLICIES, make_policy
from workflows.optimizer.sobol import SobolPolicy


class TestMeshtune(PolicyContract):
    policy = MeshtunePolicy


class TestDeepHyper(PolicyContract):
    policy = DeepHyperPolicy


class TestOptuna(PolicyContract):
    policy = OptunaPolicy


class TestCostModel(PolicyContract):
    policy = CostModelPolicy


class TestSobol(PolicyContract):
    policy = SobolPolicy


class TestRandom(PolicyContract):
    policy = RandomPolicy


class SecondSeed(PolicyContract):
    """As a suite that makes a policy in its own way; its games are its own."""

    policy = RandomPolicy

    def make(self, space: SearchSpace, seed: int = 0, **more: Any) -> Policy:
        return super().make(space, seed + 1, **more)


def test_suites_of_one_policy_play_games_of_their_own(space: SearchSpace) -> None:
    first, second = (
        [trial.config for trial in suite.played(space, 3).trials.values()]
        for suite in (TestRandom(), SecondSeed())
    )
    assert first != second


@pytest.fixture
def space(tmp_path: Path) -> SearchSpace:
    file = tmp_path / "space.yaml"
    file.write_text(UNPRICED)
    return load_space(file)


def test_every_built_in_policy_is_under_contract() -> None:
    contracts = [c for c in globals().values() if isinstance(c, type) and c is not PolicyContract]
    tested = {c.policy for c in contracts if issubclass(c, PolicyContract)}
    assert tested == {POLICIES.get(name) for name in POLICIES.names()}


def test_an_unknown_policy_is_an_error_that_lists_the_known_ones(space: SearchSpace) -> None:
    with pytest.raises(RegistryError, match="there are meshtune, deephyper, optuna"):
        make_policy(space, 0, "meshtuna")


def test_an_installed_policy_is_found_by_its_entry_point(
    space: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = EntryPoint("mine", f"{__name__}:Mine", "meshtune.policies")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints([found]))
    monkeypatch.setitem(__import__("sys").modules, __name__, _Module)
    assert isinstance(make_policy(space, 0, "mine"), Mine)
    assert "mine" in POLICIES.names()


def test_a_part_that_is_no_policy_is_refused(
    space: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = EntryPoint("wrong", "builtins:repr", "meshtune.policies")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints([found]))
    with pytest.raises(RegistryError, match="'wrong' is of type str"):
        make_policy(space, 0, "wrong")


class Mine(RandomPolicy):
    """A policy of another distribution."""


class _Module:
    Mine = Mine


def test_sobol_points_are_spread_more_evenly_than_by_chance(
    make_space: Callable[..., SearchSpace],
) -> None:
    space = make_space(
        parameters="{a: {range: [1, 32]}, b: {range: [1, 32]}}", trainer="{command: [train]}"
    )

    def emptiest(policy: Any) -> float:
        """Half the width of the largest square without a point."""
        run = Run(Path())
        contract = PolicyContract()
        contract.play(policy, run, 32)
        points = np.array([[t.config["a"], t.config["b"]] for t in run.trials.values()])
        grid = np.array([[a, b] for a in range(1, 33) for b in range(1, 33)])
        return float(np.abs(grid[:, None] - points).max(axis=2).min(axis=1).max())

    spread = [emptiest(SobolPolicy(Problem(space, seed))) for seed in range(5)]
    chance = [emptiest(RandomPolicy(Problem(space, seed))) for seed in range(5)]
    assert np.mean(spread) < np.mean(chance)
