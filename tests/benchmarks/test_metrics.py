"""The accuracy benchmark's metrics, by hand-made figures."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.cost_model import metrics

NAN = float("nan")


def test_ranks_of_ties_are_shared() -> None:
    assert metrics.spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(0.8660254)
    assert metrics.spearman([1, 2, 3], [10, 20, 90]) == pytest.approx(1)
    assert metrics.spearman([3, 2, 1], [10, 20, 90]) == pytest.approx(-1)


def test_a_prediction_that_tells_nothing_ranks_nothing() -> None:
    assert metrics.spearman([5.0, 5.0 * (1 + 1e-13), 5.0], [1, 2, 3]) == 0


@pytest.mark.parametrize("measured", [[], [1], [NAN, 1], [2, 2]])
def test_what_cannot_be_ranked_has_no_correlation(measured: list[float]) -> None:
    assert np.isnan(metrics.spearman(np.arange(len(measured)), measured))


def test_errors_are_of_rows_that_have_both_figures() -> None:
    errors = metrics.relative_errors([1.1, NAN, 3.0, 0.5], [1.0, 1.0, NAN, 1.0])
    assert errors == pytest.approx([0.1, 0.5])
    assert np.isnan(metrics.mean([])) and np.isnan(metrics.median([NAN]))


def test_the_regret_of_a_first_try_that_fails_is_all() -> None:
    predicted, measured = [1.0, 2.0, 3.0], [NAN, 4.0, 5.0]
    assert metrics.regret(predicted, [NAN] * 3, measured, 1) == 1
    assert metrics.regret(predicted, [NAN] * 3, measured, 2) == 0
    assert metrics.regret(predicted, [NAN] * 3, [NAN, 5.0, 4.0], 2) == pytest.approx(0.2)


def test_rows_that_are_thought_not_to_fit_are_tried_last() -> None:
    random = np.random.default_rng(0)
    order = metrics.order([1.0, 2.0, 3.0, 4.0], [0.1, 0.9, 0.4, 0.5], random)
    assert list(order) == [1, 3, 2, 0]


def test_of_ten_ranked_first_those_that_are_among_the_ten_fastest_count() -> None:
    measured = np.arange(1.0, 31.0)
    sure = np.ones(30)
    assert metrics.ten_of_ten(measured, sure, measured) == 10
    assert metrics.ten_of_ten(-measured, sure, measured) == 0
    one_off = measured.copy()
    one_off[[0, 20]] = one_off[[20, 0]]
    assert metrics.ten_of_ten(one_off, sure, measured) == 9
    assert metrics.ten_of_ten(np.ones(30), sure, measured) == pytest.approx(10 / 3, abs=0.7)
    failed = np.where(measured <= 4, np.nan, measured)
    assert metrics.ten_of_ten(measured, sure, failed) == 6
    assert np.isnan(metrics.ten_of_ten(measured[:19], sure[:19], measured[:19]))


def test_a_tie_is_no_lucky_guess() -> None:
    assert 0.1 < metrics.regret([1.0, 1.0], [1.0, 1.0], [1.0, 2.0], 1) < 0.4
    assert 0.2 < metrics.regret([1.0, 1 + 1e-13], [1.0, 1.0], [1.0, NAN], 1) < 0.8
    assert metrics.regret([1.0, 1.0], [1.0, 1.0], [1.0, NAN], 2) == 0


def test_fitting_counts_what_was_foretold() -> None:
    found = metrics.fitting(
        np.array([0.9, 0.1, 0.9, 0.1, NAN]), np.array([False, True, True, False, True])
    )
    assert (found.accuracy, found.caught, found.wrongly_pruned) == (0.5, 0.5, 0.5)
    assert np.isnan(metrics.fitting(np.array([1.0]), np.array([False])).caught)


def test_a_probability_is_held_against_how_often_rows_ran() -> None:
    found = metrics.fitting(
        np.array([0.6, 0.8, 0.7, 1.0, np.nan]), np.array([True, False, False, False, True])
    )
    by_bin = dict(zip(metrics.BINS, found.reliability, strict=False))
    assert by_bin[0.5] == (2, pytest.approx(0.65), 0.5)
    assert by_bin[0.8] == (1, 0.8, 1.0)
    assert by_bin[0.98] == (1, 1.0, 1.0)
    assert by_bin[0.0][0] == by_bin[0.02][0] == by_bin[0.2][0] == 0


def test_a_landscape_with_too_few_runs_is_not_ranked() -> None:
    landscape = np.array(["a"] * 4 + ["b"] * 4)
    measured = np.array([1.0, 2, 3, 4, 1, 2, 3, NAN])
    found = list(metrics.rankings(landscape, measured, np.ones(8), measured))
    assert [r.landscape for r in found] == ["a"]
    assert found[0].spearman == pytest.approx(1)
