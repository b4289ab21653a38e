"""What another trial is expected to add to the best."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import load_space
from workflows.optimizer.expected_gain import expected_gain, improvement
from workflows.optimizer.model_trust import SURPRISED
from workflows.optimizer.registry import make_policy


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


@pytest.mark.parametrize(
    ("off", "then", "stated"), [(0.25, "ok", True), (8.0, "ok", False), (8.0, "crash", False)]
)
def test_nothing_is_said_of_what_is_left_for_some_trials_after_one_that_was_too_fast(
    tmp_path: Path, off: float, then: str, stated: bool
) -> None:
    """The seventh trial is disturbed, or faster than expected; the next ones run or fail."""
    path = tmp_path / "small.yaml"
    path.write_text(
        "version: 1\nmodel: llama_8b\ncluster: dgx_h100\ntrainer: {command: [train]}\n"
        "parameters: {num_nodes: 2, tp: [1, 2, 4, 8], pp: [1, 2, 4], mbs: [1, 2, 4, 8], "
        "gas: [4, 8, 16, 32], zero_stage: [0, 1], sequence_parallel: [false, true]}\n"
        "objective: {maximize: tokens_per_second_per_gpu}\n"
    )
    policy, run, says = make_policy(load_space(str(path)), seed=0), Run(Path()), []
    for number in range(1, 8 + SURPRISED + 1):
        proposal = policy.propose(run, 2**31)
        assert proposal is not None
        says.append("gain" in proposal.expected)
        trial = Trial(number, proposal.config, 0.0, proposal.by, proposal.why, proposal.expected)
        trial.kind, trial.ended_t = "ok" if number <= 7 else then, float(number)
        if trial.ok:
            trial.objective = trial.expected["objective"] * (off if number == 7 else 1.0)
        run.trials[number] = trial
    assert says[6]
    assert says[7 : 7 + SURPRISED] == [stated] * SURPRISED
    assert says[7 + SURPRISED]
