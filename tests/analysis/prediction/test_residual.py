"""What the cost model leaves open, where parameters have no price."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.prediction.residual import ResidualProcess

LEVELS = np.eye(3)  # of a parameter without a price and without an order


def rows(places: list[float], levels: list[int]) -> np.ndarray:
    return np.column_stack([places, LEVELS[levels]])


def test_what_a_parameter_does_by_itself_is_known_at_every_degree() -> None:
    measured = rows([0.0, 0.0, 0.2], [0, 1, 1])
    residual = ResidualProcess(measured, np.array([-0.1, 0.1, 0.1]), log_sd=0.1, unpriced=3)
    far = rows([9.0, 9.0, 9.0], [0, 1, 2])
    mean, deviation = residual.at(far)
    assert mean[1] - mean[0] > 0.1
    assert mean[2] == pytest.approx(0.0, abs=0.01)  # nothing was measured of it
    untried = residual.untried(far)
    assert np.all(untried < deviation)
    assert untried[2] > 1.3 * max(untried[0], untried[1])
    covariance = residual.covariance(far)
    assert np.sqrt(np.diag(covariance)) == pytest.approx(deviation)


def test_without_such_parameters_nothing_is_untried() -> None:
    residual = ResidualProcess(np.zeros((1, 2)), np.array([0.1]), log_sd=0.1)
    assert residual.untried(np.ones((4, 2))) == pytest.approx(0.0, abs=1e-3)
