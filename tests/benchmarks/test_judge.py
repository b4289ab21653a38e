"""The quick judge of the search, on a sweep that the tests write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from analysis.prediction.pricing import Pricing
from benchmarks.search.floor import fewest
from benchmarks.search.games import forgotten, unread
from benchmarks.search.judge import bins, main
from benchmarks.search.values import RULES, trials
from benchmarks.search.varied import KERNELS, WORKERS, disturbed, with_unpriced
from search_spaces.known import framework_named
from workflows.replay.landscape import Landscape
from workflows.replay.landscapes import recorded


@pytest.fixture
def landscape(truth: Callable[..., Path]) -> Landscape:
    return recorded(truth((16, 1)) / "sweep.csv")[0][0]


def test_parameters_without_a_price_leave_the_best_as_good(landscape: Landscape) -> None:
    harder = with_unpriced(landscape, seed=0)
    assert len(harder.configs) == len(landscape.configs) * len(KERNELS) * len(WORKERS)
    assert harder.best == pytest.approx(landscape.best)
    assert sorted(harder.medians.values())[0] < 0.7 * min(landscape.medians.values())


def test_runs_scatter_around_what_was_recorded(landscape: Landscape) -> None:
    noisy = disturbed(landscape, 0.1, seed=0)
    assert noisy.medians == pytest.approx(landscape.medians)
    key = next(iter(noisy.medians))
    told = [answer.objective for answer in noisy.answers[key]]
    assert 0.02 < np.std(np.log(told)) < 0.3


def test_what_is_unknown_is_so_whatever_was_played_before(landscape: Landscape) -> None:
    """A space keeps the record that it has read, so that a second search would know it."""
    known = Pricing(landscape.space).model.framework
    with forgotten(known.name):
        unknown = Pricing(unread(landscape).space).model.framework
        assert unknown == framework_named(known.name) != known
    assert Pricing(unread(landscape).space).model.framework == known


@pytest.mark.parametrize("rule", RULES)
def test_rules_of_choosing_values_are_between_chance_and_knowing_the_effects(rule: str) -> None:
    def mean(name: str, kind: str) -> float:
        return float(np.mean(np.log([trials(RULES[name], kind, seed) for seed in range(60)])))

    assert np.log(fewest(tuple(KERNELS.values()), tuple(WORKERS.values()))) < mean(rule, "judge")
    assert mean(rule, "drawn") <= mean("any order", "drawn")


def test_bins_say_what_was_stated_and_what_ran() -> None:
    stated = np.array([0.01, 0.6, 0.6, 0.99])
    said = bins(stated, np.array([False, True, False, True]))
    assert said == "1:0 of 1, -, -, 60:50 of 2, -, 99:100 of 1"


@pytest.mark.parametrize("case", ["known", pytest.param("inverted", marks=pytest.mark.heavy)])
def test_a_case_is_a_row(
    case: str, truth: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--truth", str(truth((16, 1))), "--cases", case, "--each"]) == 0
    said = capsys.readouterr().out
    assert "trials to 5 %; ended after" in said and f"| {case} | " in said


def test_no_search_can_need_fewer_trials_than_the_best_decision_tree() -> None:
    """Of two values one is right: the first trial or the second; a known one costs none."""
    assert fewest((1.0, 0.5), (1.0,)) == pytest.approx(2**0.5)
    assert fewest((1.0, 0.97), (1.0,)) == 1
    assert fewest((1.0, 0.5), (1.0, 0.7)) == pytest.approx(2**0.75)
