"""What a trial is worth, and what another one is expected to add to the best."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest

from analysis.cost.model import LIKELY
from analysis.prediction.acquisition import (
    FAILURE_PRICE,
    SURE,
    acquisition,
    drawn_gain,
    expected_gain,
    improvement,
)
from analysis.prediction.candidate_set import CandidateSet
from analysis.prediction.posterior import Observations, Posterior
from analysis.prediction.pricing import Pricing
from analysis.prediction.trust import SURPRISED
from analysis.report.next_trials import next_trials
from analysis.report.outlook import Outlook
from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import Candidates, SearchSpace, load_space
from workflows.optimizer.policy import Policy
from workflows.optimizer.registry import make_policy
from workflows.simulation.workload import true_pricing


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> SearchSpace:
    path = tmp_path_factory.mktemp("space") / "small.yaml"
    path.write_text(
        "version: 1\nmodel: llama_8b\ncluster: dgx_h100\ntrainer: {command: [train]}\n"
        "parameters: {num_nodes: 2, tp: [1, 2, 4, 8], pp: [1, 2, 4, 8], mbs: [1, 2, 4], "
        "gas: {log2: [1, 64]}}\nobjective: {maximize: tokens_per_second}\n"
    )
    return load_space(str(path))


@pytest.fixture(scope="module")
def searched(space: SearchSpace) -> Run:
    """A search whose trials run one at a time as the cost model says, with noise of 2 %."""
    truth, rng = true_pricing(space, 0.0, 0), np.random.default_rng(0)
    policy, run = make_policy(space, 0), Run(Path(), seed=0)
    for number in range(1, 17):
        proposal = policy.propose(run, 2**31)
        assert proposal is not None
        trial = Trial(number, proposal.config, 0.0, proposal.by, proposal.why, proposal.expected)
        answer, trial.ended_t = truth.predict([trial.config]), float(number)
        trial.kind = "oom"
        if answer.peak_bytes[0] <= truth.model.memory_limit_bytes:
            slower = float(np.exp(rng.normal(0, 0.02)))
            trial.kind = "ok"
            trial.objective = float(answer.tokens_per_second[0]) / slower
            trial.result = {"step_time_s": {"median": float(answer.step_time_s[0]) * slower}}
        run.trials[number] = trial
    return run


def first(searched: Run, trials: int) -> Run:
    """The search when so many trials had ended."""
    begun = {number: trial for number, trial in searched.trials.items() if number <= trials}
    return Run(Path(), seed=0, trials=begun)


def posterior_of(space: SearchSpace, run: Run) -> Posterior:
    pricing, observations = Pricing(space).supposing(), Observations.of(run)
    shortlist = CandidateSet.shortlist(pricing, Candidates(space), 0)
    model = observations.calibrated(pricing)
    return Posterior(shortlist, model, observations, shortlist.untried(run))


def test_a_candidates_improvement_is_the_mean_over_what_it_could_be(
    space: SearchSpace, searched: Run
) -> None:
    run = first(searched, 6)
    posterior, best = posterior_of(space, run), run.best
    assert best is not None
    gains, better = improvement(posterior, best)
    rng = np.random.default_rng(0)
    for at in np.argsort(-gains)[:3].tolist():
        ahead = posterior.mean[at] - posterior.goal.measured(best)
        drawn = rng.normal(ahead, posterior.deviation[at], 200_000)
        assert gains[at] == pytest.approx(np.expm1(np.maximum(drawn, 0)).mean(), rel=0.05)
        assert better[at] == pytest.approx(np.mean(drawn > 0), rel=0.05)


def test_runs_near_the_limit_tell_whether_it_makes_jobs_slow(space: SearchSpace) -> None:
    truth = true_pricing(space, 0.0, 0)
    configs = Candidates(space).draw(10_000, np.random.default_rng(0), [], 2)
    answer = truth.predict(configs)
    roomy = np.flatnonzero((answer.fits > 0.99) & (answer.full < 0.01))
    full = np.flatnonzero((answer.fits > LIKELY) & (answer.full > 0.5))
    assert len(full) >= 3

    def at_speed(slowdown: float) -> float:
        """Of what is near the limit, if two others there took so many times as long."""
        run = Run(Path())
        for number, at in enumerate([*roomy[:3], *full[:2]], 1):
            slower = slowdown if at in full else 1.0
            trial = Trial(number, configs[at], 0.0, kind="ok", ended_t=float(number))
            trial.objective = float(answer.tokens_per_second[at]) / slower
            trial.result = {"step_time_s": {"median": float(answer.step_time_s[at]) * slower}}
            run.trials[number] = trial
        posterior = posterior_of(space, run)
        near = (posterior.prediction.full > 0.5) & (posterior.eligibility > LIKELY)
        assert near.any()
        return float((posterior.at_speed / posterior.eligibility)[near].mean())

    assert at_speed(1.0) > 0.8 > 0.4 > at_speed(3.0)


def test_gain_is_that_of_the_normal_distribution_and_grows_with_the_batch() -> None:
    rng = np.random.default_rng(0)
    mean, covariance, runs = np.zeros(40), 0.01 * np.eye(40), np.ones(40)
    one = [drawn_gain(mean[:1], covariance[:1, :1], runs[:1], 1, rng) for _ in range(50)]
    # E[exp(x) - 1; x > 0] of a normal x with deviation 0.1
    assert np.mean([gain["gain"] for gain in one]) == pytest.approx(0.0427, rel=0.05)
    batch = drawn_gain(mean, covariance, runs, 4, rng)
    assert one[0]["gain"] < batch["gain"] < batch["left"]
    assert drawn_gain(mean, covariance, 0 * runs + 1e-9, 4, rng)["left"] < 1e-3
    assert drawn_gain(mean - 1.0, covariance, runs, 4, rng)["left"] < 1e-6


def test_no_trial_is_proposed_that_cannot_win_while_an_untried_configuration_can(
    space: SearchSpace, searched: Run
) -> None:
    """Llama 8B on DGX H100, 16 trials: a trial's own 95 % interval reaches the best before it."""
    run = searched
    before, best = Run(Path(), seed=0), 0.0
    hopeless = 0
    for number, trial in run.trials.items():
        if trial.expected["high"] < best:
            hopeless += 1
            posterior = posterior_of(space, before)
            reaches = posterior.goal.objective(posterior.upper) > best
            assert not np.any(reaches & (posterior.feasibility >= LIKELY)), number
        before.trials[number] = trial
        best = max(best, trial.objective or 0.0)
    assert hopeless <= 4


def test_a_candidate_that_may_win_comes_before_a_certain_one_that_cannot(
    space: SearchSpace, searched: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = first(searched, 8)
    posterior, best = posterior_of(space, run), run.best
    assert best is not None
    value = acquisition(posterior, best)
    reaches = posterior.goal.objective(posterior.upper) >= (best.objective or 0.0)
    likely = posterior.feasibility >= LIKELY
    assert (reaches & likely).any() and not reaches.all()
    assert np.isfinite(value[reaches & likely]).all() and np.isneginf(value[~reaches]).all()
    # What hardly runs is tried only where it would gain more than its failure costs.
    gain, _ = improvement(posterior, best)
    worth = gain * posterior.feasibility > FAILURE_PRICE * (1 - posterior.feasibility)
    assert np.isneginf(value[~likely & ~worth]).all()
    # Nor does a rule that prefers only others bring them.
    monkeypatch.setattr("analysis.prediction.acquisition._first_variants", lambda *_: ~reaches)
    assert np.isneginf(acquisition(posterior, best)[~reaches]).all()


@pytest.mark.parametrize(("other_gain", "comes_first"), [(1e-9, True), (1e-3, False)])
def test_a_failure_costs_no_more_than_what_can_still_be_gained(
    space: SearchSpace, searched: Run, monkeypatch: pytest.MonkeyPatch,
    other_gain: float, comes_first: bool,
) -> None:  # fmt: skip
    """One candidate may gain 0.1 %, but fails with 25 %; all others run, and gain next to nothing
    or as much."""
    run = first(searched, 8)
    posterior, best = posterior_of(space, run), run.best
    at = int(np.argmax(posterior.upper))
    runs, gain = np.full(len(posterior.upper), 0.999), np.full(len(posterior.upper), other_gain)
    runs[at], gain[at] = 0.75, 1e-3
    for name in ("feasibility", "eligibility", "at_speed"):
        vars(posterior)[name] = runs
    monkeypatch.setattr(
        "analysis.prediction.acquisition.improvement", lambda *_: (gain, np.zeros_like(gain))
    )
    assert (int(np.argmax(acquisition(posterior, best))) == at) is comes_first


def test_after_two_failures_in_a_row_only_what_surely_runs_comes(
    space: SearchSpace, searched: Run
) -> None:
    run = first(searched, 6)
    posterior = posterior_of(space, run)
    unsure = posterior.feasibility < SURE
    assert unsure.any() and np.isfinite(acquisition(posterior, run.best)[unsure]).any()
    for number, config in enumerate(Candidates(space).draw(2, np.random.default_rng(1), [], 9), 7):
        run.trials[number] = Trial(number, space.canonical(config), 0.0, kind="crash")
    posterior = posterior_of(space, run)
    unsure = posterior.feasibility < SURE
    assert unsure.any() and np.isneginf(acquisition(posterior, run.best)[unsure]).all()


def test_what_no_success_had_counts_in_what_is_left(
    space: SearchSpace, searched: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only trials with a pipeline, or only trials without: the other half is in doubt."""
    run = first(searched, 12)
    piped = [number for number, trial in run.trials.items() if trial.config["pp"] > 1]
    if 2 * len(piped) < len(run.trials):
        piped = [number for number in run.trials if number not in piped]
    some = Run(Path(), seed=0, trials={number: run.trials[number] for number in piped})
    left: dict[tuple[bool, float], float] = {}
    for known in (some, run):
        posterior, best = posterior_of(space, known), known.best
        assert best is not None
        pipelines = posterior.prediction.jobs.layout.pp > 1
        others = pipelines != (best.config["pp"] > 1)
        assert (posterior.untried.any(axis=1) == (others & (known is some))).all()
        for doubt in (0.0, 0.2):
            monkeypatch.setattr("analysis.prediction.acquisition.UNTRIED_LOG_SD", doubt)
            rng, model = np.random.default_rng(0), posterior.prediction.model
            gain = expected_gain(posterior, best, 1, model, rng)
            assert gain is not None
            left[known is some, doubt] = gain["left"]
    assert left[True, 0.2] > left[True, 0.0]
    assert left[False, 0.2] == left[False, 0.0]


@pytest.mark.parametrize("trials", [4, 9, 16])
def test_the_reports_first_next_trial_is_what_the_search_proposes_next(
    space: SearchSpace, searched: Run, trials: int
) -> None:
    run = first(searched, trials)
    proposal = make_policy(space, run.seed).propose(run, 2**31)
    named = next_trials(Outlook(run, Pricing(space)))[0]
    assert proposal is not None and named.config == proposal.config
    told = [proposal.expected[name] for name in ("objective", "low", "high", "fits")]
    assert [named.objective, named.low, named.high, named.runs] == pytest.approx(told)


@pytest.fixture(scope="module")
def wider(tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchSpace, Run]:
    """A space, and seven trials of it that went as expected."""
    path = tmp_path_factory.mktemp("space") / "small.yaml"
    path.write_text(
        "version: 1\nmodel: llama_8b\ncluster: dgx_h100\ntrainer: {command: [train]}\n"
        "parameters: {num_nodes: 2, tp: [1, 2, 4, 8], pp: [1, 2, 4], mbs: [1, 2, 4, 8], "
        "gas: [4, 8, 16, 32], zero_stage: [0, 1], sequence_parallel: [false, true]}\n"
        "objective: {maximize: tokens_per_second_per_gpu}\n"
    )
    space, run = load_space(str(path)), Run(Path())
    policy = make_policy(space, seed=0)
    for _ in range(7):
        as_expected(policy, run)
    return space, run


def as_expected(policy: Policy, run: Run, kind: str = "ok") -> Trial:
    """Propose a trial and end it with what is expected of it."""
    proposal, number = policy.propose(run, 2**31), len(run.trials) + 1
    assert proposal is not None
    trial = Trial(number, proposal.config, 0.0, proposal.by, proposal.why, proposal.expected)
    trial.kind, trial.ended_t = kind, float(number)
    if trial.ok:
        trial.objective = trial.expected["objective"]
    run.trials[number] = trial
    return trial


@pytest.mark.parametrize(
    ("off", "then", "stated"), [(0.25, "ok", True), (8.0, "ok", False), (8.0, "crash", False)]
)
def test_nothing_is_said_of_what_is_left_for_some_trials_after_one_that_was_too_fast(
    wider: tuple[SearchSpace, Run], off: float, then: str, stated: bool
) -> None:
    """The seventh trial is disturbed, or faster than expected; the next ones run or fail."""
    space, run = wider[0], Run(Path(), trials=copy.deepcopy(wider[1].trials))
    seventh = run.trials[7]
    assert "gain" in seventh.expected
    seventh.objective = off * seventh.expected["objective"]
    policy = make_policy(space, seed=0)
    says = ["gain" in as_expected(policy, run, then).expected for _ in range(SURPRISED + 1)]
    assert says == [stated] * SURPRISED + [True]


def test_a_variant_that_needs_less_memory_does_not_fail_with_another(tmp_path: Path) -> None:
    """The time of ``compile`` has no price, but its memory has."""
    path = tmp_path / "space.yaml"
    path.write_text(
        "version: 1\nmodel: llama_8b\ncluster: dgx_h100\n"
        "trainer: {builtin: {data: python-source, precision: bf16}}\n"
        "parameters: {num_nodes: 2, tp: 2, mbs: 2, gas: 4, zero_stage: 3, compile: [false, true]}\n"
        "objective: {maximize: tokens_per_second}\n"
    )
    pricing = Pricing(load_space(str(path)))
    candidates = Candidates(pricing.space)
    chosen = CandidateSet.shortlist(pricing, candidates, 0)
    compiled = [bool(config["compile"]) for config in candidates.configs(chosen.indices)]

    def feasibility(failed: int, other: int) -> tuple[float, float]:
        run = Run(tmp_path)
        [config] = candidates.configs(chosen.indices[[failed]])
        run.trials[1] = Trial(1, config, 0.0, kind="oom", ended_t=1.0)
        observations = Observations.of(run)
        rows = np.array([other])
        model = observations.calibrated(pricing)
        posterior = Posterior(chosen, model, observations, rows)
        return float(posterior.feasibility[0]), float(posterior.prediction.fits[0])

    lean, eager = compiled.index(True), compiled.index(False)
    feasible, fits = feasibility(eager, lean)
    assert feasible > 0.5 * fits
    feasible, fits = feasibility(lean, eager)
    assert fits > 0.9 and feasible < 0.1
