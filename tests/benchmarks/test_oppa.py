"""OPPA's policy, which other searches are compared with, and its formulas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from analysis.prediction.pricing import Pricing
from benchmarks.search.judge import main
from benchmarks.search.oppa import BEYOND, OppaPolicy
from benchmarks.search.parallelism_prior import memory_prior, time_prior
from meshtune.testing.policies import SPACES, PolicyContract
from search_spaces import Cluster, SearchSpace, load_space
from trainer.plan.jobs import Jobs
from workflows import Problem
from workflows.replay.landscapes import recorded
from workflows.replay.play import play


class TestOppa(PolicyContract):
    policy = OppaPolicy

    @pytest.fixture
    def space(self, tmp_path: Path) -> SearchSpace:
        """The one that it accepts: priced, for tokens per second."""
        file = tmp_path / "contract.yaml"
        file.write_text(SPACES["priced"])
        return load_space(str(file))


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    """All of a small space of dense models' jobs on one and two nodes."""
    file = tmp_path / "space.yaml"
    file.write_text(SPACES["priced"])
    space = load_space(str(file))
    problem = Problem(space, seed=0)
    configs = problem.candidates.draw(1000, np.random.default_rng(0), [], 2)
    return Pricing(space).jobs_of(configs)


def test_time_without_messages_is_computation_and_bubble(jobs: Jobs) -> None:
    prior = time_prior(Cluster.named("dgx_h100"))
    free = np.log([1e15, 1e30, 1e30, 1e-30])
    bubble = 1 + (jobs.layout.pp - 1) / jobs.layout.gas
    for several in (jobs.layout.pp == 1, jobs.layout.pp == 2):
        own = np.exp(prior.log(jobs, free))[several] / bubble[several]
        batch = (jobs.global_batch / jobs.layout.world_size)[several]
        assert own / batch == pytest.approx(np.full(several.sum(), own[0] / batch[0]))


def test_slower_links_make_every_job_of_several_ranks_slower(jobs: Jobs) -> None:
    prior = time_prior(Cluster.named("dgx_h100"))
    slower = prior.expected - np.log([1, 4, 4, 1])
    assert (prior.log(jobs, slower) > prior.log(jobs, prior.expected)).all()


def test_constants_are_found_from_runs_that_follow_the_formulas(jobs: Jobs) -> None:
    prior = time_prior(Cluster.named("dgx_h100"))
    true = prior.expected + np.log([0.7, 0.5, 0.6, 1.0])
    measured = prior.log(jobs, true)
    before = np.abs(prior.log(jobs, prior.expected) - measured).max()
    fitted = prior.fitted(jobs, measured, np.full(len(jobs), np.nan))
    assert before > 0.3
    assert np.abs(prior.log(jobs, fitted) - measured).max() < 0.05


def test_a_lack_of_memory_raises_what_is_needed_only_where_it_was_not_foreseen(jobs: Jobs) -> None:
    prior = memory_prior()
    found = prior.log(jobs, prior.expected)
    nothing = np.full(len(jobs), np.nan)
    foreseen = prior.fitted(jobs, nothing, found - 0.1)
    assert foreseen == pytest.approx(prior.expected, abs=1e-6)
    surprised = prior.fitted(jobs, nothing, found + np.log(BEYOND) + 0.5)
    assert (prior.log(jobs, surprised) > found + 0.1).all()


def test_it_finds_a_good_configuration_of_a_sweep_before_half_is_tried(
    truth: Callable[..., Path],
) -> None:
    landscape = recorded(truth((16, 1)) / "sweep.csv")[0][0]
    policy = OppaPolicy(Problem(landscape.space, 0, only=landscape.configs))
    played = play(landscape, policy, seed=0, until=None)
    assert len(played.shares) == len(landscape.configs)
    assert (played.trials_to(0.05) or 99) <= len(landscape.configs) // 2


def test_the_judge_plays_it(truth: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--truth", str(truth((16, 1))), "--cases", "oppa"]) == 0
    assert "| oppa | " in capsys.readouterr().out
