"""The search guided by the cost model: what it proposes, when it is trusted, what it learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.prediction.acquisition import improvement
from analysis.prediction.pricing import Pricing
from analysis.prediction.start_up import StartUp
from analysis.prediction.trust import MAX_UNFORESEEN_OOMS, PROBES, trusted as may_choose
from analysis.report.outlook import Outlook
from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import Objective, SearchSpace, load_space
from search_spaces.points.candidates import Candidates
from support.guided_search import Speed, ask, choosers, search, tell
from workflows.optimizer.policy import Proposal
from workflows.optimizer.registry import make_policy
from workflows.search.budget import SUCCESSES, Budget


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> SearchSpace:
    path = tmp_path_factory.mktemp("space") / "small.yaml"
    path.write_text(
        "version: 1\nmodel: llama_8b\ncluster: dgx_h100\ntrainer: {command: [train]}\n"
        "parameters: {num_nodes: 2, tp: [1, 2, 4, 8], pp: [1, 2, 4], mbs: [1, 2, 4, 8], "
        "gas: [4, 8, 16, 32], zero_stage: [0, 1], sequence_parallel: [false, true]}\n"
        "objective: {maximize: tokens_per_second_per_gpu}\n"
    )
    return load_space(str(path))


@pytest.fixture(scope="module")
def predicted(space: SearchSpace) -> Speed:
    """What the uncalibrated model expects; None where it expects no room."""
    pricing = Pricing(space)

    def speed(config: Mapping[str, Any]) -> float | None:
        prediction = pricing.predict([config])
        figure = pricing.objective(prediction)
        assert figure is not None
        return float(figure[0]) if prediction.fits[0] > 0.5 else None

    return speed


def test_what_would_not_end_in_time_is_not_proposed(space: SearchSpace) -> None:
    pricing = Pricing(space)

    def step_time_s(proposal: Proposal) -> float:
        return float(pricing.predict([proposal.config]).step_time_s[0])

    free = step_time_s(ask(make_policy(space, 0), Run(Path())))
    trial = space.trial
    steps = trial.warmup_steps + trial.measured_steps
    hasty = trial.model_copy(
        update={"timeout_s": StartUp.expected(space).base_s + steps * free / 3}
    )
    hurried, run = make_policy(replace(space, trial=hasty), 0), Run(Path())
    for _ in range(6):
        proposal = ask(hurried, run)
        assert step_time_s(proposal) < free / 3
        tell(run, proposal, None, "timeout")


def test_the_first_proposal_is_the_models_best_and_says_why(
    space: SearchSpace, predicted: Speed
) -> None:
    first = ask(make_policy(space, seed=0), Run(Path()))
    others = Candidates(space).draw(300, np.random.default_rng(0), [], 64)
    assert (predicted(first.config) or 0) >= 0.95 * max(predicted(c) or 0 for c in others)
    assert first.by == "cost model" and "no trial yet" in first.why
    assert first.expected["low"] < first.expected["objective"] < first.expected["high"]
    assert 0.5 < first.expected["fits"] <= 1


@pytest.fixture(scope="module")
def right(space: SearchSpace, predicted: Speed) -> Run:
    """A search of twelve trials that go as predicted."""
    return search(make_policy(space, seed=0), 12, predicted)


def proposed(trial: Trial) -> Proposal:
    return Proposal(trial.config, trial.by, trial.why, trial.expected)


def test_a_model_that_is_right_is_believed_to_the_end(right: Run) -> None:
    assert choosers(right) == ["cost model"] * 12


@pytest.mark.parametrize("maximize", [True, False])
def test_a_figure_below_zero_neither_shakes_the_model_nor_makes_an_expectation_no_number(
    space: SearchSpace, predicted: Speed, maximize: bool
) -> None:
    """A trainer's own mistake, for what is predicted is positive; the journal takes no NaN."""
    if not maximize:
        space = replace(space, objective=Objective("step_time_s.median", maximize=False))
        pricing = Pricing(space)

    def reported(config: Mapping[str, Any]) -> float | None:
        if len(asked) == 3:
            return -1.0
        speed = predicted(config)
        if maximize or speed is None:
            return speed
        return float(pricing.predict([config]).step_time_s[0])

    asked: list[Proposal] = []
    run, policy = Run(Path()), make_policy(space, seed=0)
    for _ in range(6):
        asked.append(ask(policy, run))
        tell(run, asked[-1], reported(asked[-1].config))
    assert choosers(run) == ["cost model"] * 6
    assert all(np.isfinite(x) for proposal in asked for x in proposal.expected.values())


def test_a_model_whose_level_is_off_by_half_is_calibrated_and_not_doubted(
    space: SearchSpace, predicted: Speed
) -> None:
    run = search(make_policy(space, seed=0), 8, lambda c: 0.6 * (predicted(c) or 0) or None)
    assert choosers(run) == ["cost model"] * 8
    last = run.trials[8]
    assert last.objective == pytest.approx(last.expected["objective"], rel=0.15)


def test_a_model_that_ranks_upside_down_hands_over(space: SearchSpace, predicted: Speed) -> None:
    best = max(
        predicted(c) or 0 for c in Candidates(space).draw(100, np.random.default_rng(0), [], 64)
    )

    def inverted(config: Mapping[str, Any]) -> float | None:
        speed = predicted(config)
        return best**2 / speed * (best / speed) if speed and speed < 0.7 * best else best / 20

    run = search(make_policy(space, seed=0), 12, inverted)
    by = choosers(run)
    trusted = by.count("cost model")
    assert trusted <= 4
    assert by[:trusted] == ["cost model"] * trusted
    assert set(by[trusted:]) == {"random", "bayesian"}
    others = [run.trials[number] for number in range(trusted + 1, len(by) + 1)]
    assert all("the cost model was wrong here" in trial.why for trial in others)
    assert all(trial.expected["fits"] >= 0.5 for trial in others)  # of time, not of memory


@pytest.mark.parametrize(("power", "trusted"), [(1.0, True), (-1.0, False)])
def test_a_model_in_doubt_is_heard_again_if_it_ranks_what_others_chose(
    space: SearchSpace, predicted: Speed, power: float, trusted: bool
) -> None:
    """All trials are ten times off, in the model's order or in the opposite one."""
    pricing = Pricing(space)
    drawn = Candidates(space).draw(200, np.random.default_rng(0), [], 64)
    believing = 3
    configs = [c for c in drawn if predicted(c)][: believing + PROBES]
    run = Run(Path())
    for number, config in enumerate(configs, start=1):
        speed = predicted(config) or 0.0
        trial = Trial(number, config, 0.0, kind="ok", objective=(0.1 * speed) ** power)
        if number <= believing:
            told = 10 * (trial.objective or 0.0)
            trial.expected = {"objective": told, "low": 0.7 * told, "high": told / 0.7, "fits": 1}
        run.trials[number] = trial
        if number == 1:
            assert may_choose(run, pricing)
        elif believing <= number < believing + PROBES:
            assert not may_choose(run, pricing)
    assert may_choose(run, pricing) == trusted


@pytest.mark.parametrize(("measured", "trusted"), [(1.0, False), (1.8, True)])
def test_favourites_that_all_disappoint_alike_speak_against_the_model(
    space: SearchSpace, measured: float, trusted: bool
) -> None:
    """Each within its wide interval; others that are as slow would have been foreseen better."""
    pricing, run = Pricing(space), Run(Path())
    configs = [*Candidates(space).draw(16, np.random.default_rng(0), [], 64)]
    for number, config in enumerate(configs, start=1):
        trial = Trial(number, config, 0.0, kind="ok", objective=measured + 0.001 * number)
        trial.expected = {"objective": 2.0, "low": 0.8, "high": 2.6, "fits": 1}
        run.trials[number] = trial
    assert may_choose(run, pricing) == trusted


def test_a_model_that_promises_room_where_there_is_none_hands_over(space: SearchSpace) -> None:
    pricing = Pricing(space)
    run = Run(Path())
    for number, config in enumerate(Candidates(space).draw(9, np.random.default_rng(0), [], 64)):
        trial = Trial(number, config, 0.0, kind="oom", expected={"objective": 1.0, "fits": 0.99})
        run.trials[number] = trial
        assert may_choose(run, pricing) == (number + 1 < MAX_UNFORESEEN_OOMS)
    assert not ask(make_policy(space, seed=0), run).expected  # nor does it say what fits


def test_what_failed_keeps_its_neighbours_back(space: SearchSpace, predicted: Speed) -> None:
    """A crash of every tp that the model likes: it soon tries others."""
    liked = ask(make_policy(space, seed=0), Run(Path())).config["tp"]

    def speed(config: Mapping[str, Any]) -> float | None:
        return None if config["tp"] == liked else predicted(config)

    def degrees(policy: Any) -> list[int]:
        run = search(make_policy(space, seed=0, name=policy), 10, speed, kind="crash")
        return [t.config["tp"] for t in run.trials.values()]

    assert degrees("meshtune").count(liked) < degrees("cost-model").count(liked)


def test_what_would_be_fast_and_hardly_fits_is_tried_before_a_search_ends(
    space: SearchSpace, predicted: Speed, right: Run
) -> None:
    """A search that trusts its model ends soon after, for then little is left to gain."""
    policy, run = make_policy(space, seed=0), Run(Path())
    budget = Budget(expected_gain=space.budget.expected_gain)
    while len(run.trials) < 40:
        known = right.trials.get(len(run.trials) + 1)  # the same search
        proposal = proposed(known) if known else ask(policy, run)
        if budget.not_worth_it(proposal.expected, run):
            break
        tell(run, proposal, predicted(proposal.config))
    risky = [t for t in run.trials.values() if t.expected["fits"] < 0.9]
    assert risky and len(run.trials) < 24
    for trial in risky:
        before = [run.trials[n].objective or 0.0 for n in range(1, trial.number)]
        assert trial.expected["high"] > max(before)
    # None is left that would gain as much as a trial has to.
    outlook, best = Outlook(run, Pricing(space)), run.best
    posterior = outlook.posterior(outlook.shortlist, outlook.shortlist.untried(run))
    assert best is not None
    gain, _ = improvement(posterior, best)
    assert float((gain * posterior.at_speed).max()) < space.budget.expected_gain


def test_a_search_ends_where_hardly_anything_runs(space: SearchSpace) -> None:
    """Fewer configurations run than a search otherwise has successes before it ends."""
    pricing, configs = Pricing(space), Candidates(space).draw(999, np.random.default_rng(0), [], 64)
    peaks = pricing.predict(configs).peak_bytes
    needed = 1.001 * float(peaks.min())
    runs = [c for c, peak in zip(configs, peaks, strict=True) if peak <= needed and c["gas"] < 32]
    assert len(configs) > 150 and 1 < len(runs) < SUCCESSES
    assert space.cluster is not None
    smaller = space.cluster.model_copy(update={"memory_gib": 1.01 * needed / 2**30})
    policy, run = make_policy(replace(space, cluster=smaller), seed=0), Run(Path())
    budget = Budget(expected_gain=space.budget.expected_gain)
    while not budget.not_worth_it((proposal := ask(policy, run)).expected, run):
        figure = float(pricing.predict([proposal.config]).tflops_per_gpu[0])
        tell(run, proposal, figure if space.raw(proposal.config) in runs else None)
    assert len(run.trials) < 30 and run.best is not None


def test_where_nothing_is_likely_to_fit_what_needs_least_comes_first() -> None:
    """A trainer that needs a third of what full training does, which the model is not told."""
    space = load_space(
        {
            "version": 1,
            "model": "llama_70b",
            "cluster": "dgx_h100",
            "trainer": {"command": ["train"]},
            "parameters": {
                "num_nodes": 1,
                "tp": [1, 2, 4, 8],
                "mbs": [1, 2],
                "gas": {"log2": [1, 32]},
                "zero_stage": [0, 3],
                "recompute": ["none", "full"],
            },
            "constraints": ["global_batch_size == 32"],
            "objective": {"maximize": "tokens_per_second"},
        }
    )
    pricing, policy, run = Pricing(space), make_policy(space, seed=0), Run(Path())
    limit = pricing.model.memory_limit_bytes
    assert (
        pricing.predict(Candidates(space).draw(200, np.random.default_rng(0), [], 1)).fits.max()
        < 1e-6
    )
    for number in range(1, 6):
        proposal = ask(policy, run)
        answer = pricing.predict([proposal.config])
        trial = Trial(number, dict(proposal.config), 0.0, kind="oom", ended_t=float(number))
        if (needed := float(answer.peak_bytes[0]) / 3) <= limit:
            trial.kind, trial.objective = "ok", float(answer.tokens_per_second[0])
            trial.result = {"peak_memory_bytes": needed}
        run.trials[number] = trial
    assert run.trials[1].ok and sum(t.ok for t in run.trials.values()) >= 3
    assert run.best is not None and run.best.number > 1  # it is not the slowest for long


def test_running_trials_are_spread_and_never_repeated(space: SearchSpace) -> None:
    policy, run = make_policy(space, seed=0), Run(Path())
    for number in range(1, 25):
        proposal = ask(policy, run)
        assert proposal.config not in [t.config for t in run.trials.values()]
        run.trials[number] = Trial(
            number, dict(proposal.config), 0.0, proposal.by, proposal.why, proposal.expected
        )
    rules = [t.why.split(",")[0] for t in run.trials.values()]
    alone, among_others = "highest acquisition", "best under one of several models"
    assert rules == [alone] + [among_others] * 23
    ranking = search(make_policy(space, seed=0, name="cost-model"), 24, lambda _: 1.0)
    ranked = [t.config for t in ranking.trials.values()]
    assert [t.config for t in run.trials.values()] != ranked


def test_equal_histories_give_equal_proposals_also_after_a_restart(
    space: SearchSpace, right: Run
) -> None:
    run = Run(Path(), trials={n: copy(t) for n, t in right.trials.items() if n <= 7})
    unbroken = make_policy(space, seed=0)
    assert ask(unbroken, run) == proposed(right.trials[8])
    run.trials[7].kind = None  # still running when the driver was stopped
    assert ask(make_policy(space, seed=0), run) == ask(unbroken, run)


def test_no_proposal_is_wider_than_what_is_free(make_space: Callable[..., SearchSpace]) -> None:
    space = make_space(
        model="tiny",
        cluster="dgx_h100",
        parameters="{num_nodes: [1, 2, 4], tp: 1, pp: [1, 2], mbs: [1, 2], gas: 2}",
        objective="{maximize: tokens_per_second}",
    )
    policy, run = make_policy(space, seed=0), Run(Path())
    assert ask(policy, run, max_nodes=4).config["num_nodes"] == 4
    while (proposal := policy.propose(run, 2)) is not None:
        assert proposal.config["num_nodes"] <= 2
        tell(run, proposal, 1.0)
    assert len(run.trials) == sum(
        c["num_nodes"] <= 2 for c in Candidates(space).draw(99, np.random.default_rng(0), [], 4)
    )


def test_a_cluster_without_the_facts_that_a_price_needs_is_searched_all_the_same(
    make_space: Callable[..., SearchSpace],
) -> None:
    space = make_space(
        model="tiny", parameters="{num_nodes: 1, tp: [1, 2], pp: 1, mbs: [1, 2], gas: [2, 4]}"
    )
    assert ask(make_policy(space, seed=0), Run(Path())).by == "random"


def test_a_space_without_a_model_is_searched_by_bayesian_optimization(
    make_space: Callable[..., SearchSpace],
) -> None:
    run = search(make_policy(make_space(), seed=0), 10, lambda c: 10.0 * c["tp"] + c["mbs"])
    assert set(choosers(run)) == {"random", "bayesian"}
    assert not any("cost model" in t.why for t in run.trials.values())


def test_a_minimized_objective_is_guided_too_and_one_that_the_model_lacks_is_not(
    space: SearchSpace, predicted: Speed
) -> None:
    slow = replace(space, objective=Objective("step_time_s.median", maximize=False))
    proposal = ask(make_policy(slow, seed=0), Run(Path()))
    assert proposal.expected["low"] < proposal.expected["objective"]
    own = replace(space, objective=Objective("my_figure", maximize=True))
    unknown = ask(make_policy(own, seed=0), Run(Path()))
    assert unknown.by == "random" and set(unknown.expected) == {"fits"}
    assert predicted(unknown.config)  # what would not fit is left out all the same
