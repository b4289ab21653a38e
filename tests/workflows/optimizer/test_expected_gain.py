"""What another trial is expected to add to the best."""

from __future__ import annotations

import numpy as np
import pytest

from workflows.optimizer.expected_gain import expected_gain, improvement


def test_what_a_candidate_alone_gains_is_the_mean_over_what_it_could_be() -> None:
    mean, deviation, runs = np.array([-0.2, 0.0, 0.3]), np.array([0.3, 0.1, 0.2]), np.full(3, 0.5)
    gains = improvement(mean, deviation, runs, best=0.1)
    rng = np.random.default_rng(0)
    for i in range(3):
        alone = mean[i : i + 1], deviation[i : i + 1, None] ** 2, runs[:1]
        drawn = [expected_gain(*alone, 0.1, 1, rng).next for _ in range(100)]
        assert gains[i] == pytest.approx(np.mean(drawn), rel=0.1)


def test_gain_is_that_of_the_normal_distribution_and_grows_with_the_batch() -> None:
    rng = np.random.default_rng(0)
    mean, covariance, runs = np.zeros(40), 0.01 * np.eye(40), np.ones(40)
    one = [expected_gain(mean[:1], covariance[:1, :1], runs[:1], 0.0, 1, rng) for _ in range(50)]
    # E[exp(x) - 1; x > 0] of a normal x with deviation 0.1
    assert np.mean([gain.next for gain in one]) == pytest.approx(0.0427, rel=0.05)
    batch = expected_gain(mean, covariance, runs, 0.0, 4, rng)
    assert one[0].next < batch.next < batch.left
    assert expected_gain(mean, covariance, 0 * runs + 1e-9, 0.0, 4, rng).left < 1e-3
    assert expected_gain(mean - 1.0, covariance, runs, 0.0, 4, rng).left < 1e-6
