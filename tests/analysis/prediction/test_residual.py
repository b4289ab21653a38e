"""What the cost model leaves open, where parameters have no price."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.prediction.residual import ResidualProcess, features
from trainer.plan.jobs import jobs
from trainer.plan.sizes import Mixture

JOB = {
    "num_layers": 8, "hidden_size": 512, "num_heads": 8, "kv_heads": 8, "ffn_size": 2048,
    "gated": True, "vocab_size": 32000, "seq_length": 1024, "tied_embeddings": False,
    "tp": 2, "pp": 2, "vpp": 1, "dp": 8, "mbs": 1, "gas": 8, "zero_stage": 0,
}  # fmt: skip
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


def test_degrees_that_disappoint_do_so_with_every_value_of_a_parameter() -> None:
    # The model is far off here, a parameter without a price hardly does another thing elsewhere.
    residual = ResidualProcess(rows([0.0], [0]), np.array([0.8]), log_sd=0.5, unpriced=3)
    mean, deviation = residual.at(rows([0.0, 0.0, 9.0], [0, 1, 1]))
    assert mean[0] == pytest.approx(0.8, abs=0.01)
    assert mean[1] > 0.85 * 0.8
    assert mean[2] == pytest.approx(0.0, abs=0.01)
    assert deviation[1] < 0.5 * deviation[2]


def test_without_such_parameters_nothing_is_untried() -> None:
    residual = ResidualProcess(np.zeros((1, 2)), np.array([0.1]), log_sd=0.1)
    assert residual.untried(np.ones((4, 2))) == pytest.approx(0.0, abs=1e-3)


def test_one_disturbed_trial_changes_nothing_and_several_that_agree_do() -> None:
    near = 0.1 * np.random.default_rng(0).normal(size=(12, 3))
    here = np.zeros((1, 3))

    def shift(left: np.ndarray) -> float:
        return float(ResidualProcess(near[: len(left)], left, log_sd=0.15).at(here)[0][0])

    assert shift(np.array([-1.2])) == 0
    assert shift(np.array([-1.2] + [0.01] * 5)) == pytest.approx(0.01, abs=0.01)
    assert shift(np.full(12, -0.6)) == pytest.approx(-0.6, abs=0.05)
    # No disturbance makes a trial faster than it can be.
    assert shift(np.array([1.2])) > 1


def test_the_residual_is_certain_where_trials_are_and_open_elsewhere() -> None:
    there = np.array([[0.0, 0.0], [1.0, 0.0]])
    residual = ResidualProcess(there, np.array([0.1, -0.05]), log_sd=0.2)
    mean, deviation = residual.at(np.array([[0.0, 0.0], [0.5, 0.0], [9.0, 9.0]]))
    assert mean[0] == pytest.approx(0.1, abs=0.01)
    assert mean[2] == pytest.approx(0.0, abs=1e-6)
    assert deviation[0] < 0.04 < deviation[1] < deviation[2] == pytest.approx(0.2)
    covariance = residual.covariance(there)
    assert np.sqrt(np.diag(covariance)) == pytest.approx(residual.at(there)[1])


def test_a_trial_that_was_slow_by_chance_perhaps_is_believed_as_often_as_that_is_probable() -> None:
    places = np.array([[0.0], [0.5], [1.0], [9.0]])
    left = np.array([0.0, 0.01, 0.0, -0.35])  # the last has no neighbour that could tell
    likely = ResidualProcess(places, left, log_sd=0.1)
    assert likely.at(places)[0][3] == pytest.approx(0.0, abs=1e-3)  # set aside
    rng = np.random.default_rng(0)
    drawn = [ResidualProcess(places, left, 0.1, rng=rng).at(places)[0] for _ in range(200)]
    believed = np.mean([mean[3] < -0.3 for mean in drawn])
    deviations, odd = 3.5, 1 + 0.3**2  # of a measurement, whose noise is 0.03
    normal = 0.9 * np.exp(-0.5 * deviations**2 / odd) / np.sqrt(2 * np.pi * odd)
    slowed = 0.1 / 5 * np.exp(-deviations / 5)
    assert believed == pytest.approx(normal / (normal + slowed), abs=0.07)
    assert all(mean[0] == pytest.approx(0.0, abs=0.02) for mean in drawn[:20])


@pytest.mark.parametrize(
    ("column", "values"),
    [
        *[("cp", [1, 2]), ("ep", [1, 8]), ("etp", [1, 2]), ("fp8", [0, 1]), ("schedule", [0, 2])],
        *[("dispatcher", [0, 1]), ("overlaps_dispatch", [0, 1]), ("graphs", [0, 1])],
    ],
)
def test_what_has_a_price_tells_configurations_apart(column: str, values: list[float]) -> None:
    mixture = Mixture(*np.array([8, 2, 1024, 0, 0, 1], dtype=float)[:, None].repeat(2, axis=1))
    asked = jobs({**JOB, "mixture": mixture, column: values})
    one, other = features(asked, np.zeros((2, 0)))
    assert np.abs(one - other).max() > 0.1


def test_dense_models_experts_are_no_second_tensor_parallelism() -> None:
    one, other = features(jobs({**JOB, "tp": [1, 4], "dp": 8}), np.zeros((2, 0)))
    assert np.count_nonzero(one - other) == 1
