from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import SearchSpace, load_space
from search_spaces.points.candidates import Candidates
from workflows.optimizer.builtin import DeepHyperPolicy
from workflows.optimizer.policy import Policy, Problem
from workflows.optimizer.registry import make_policy

Make = Callable[..., SearchSpace]


def add(run: Run, config: Mapping[str, Any], kind: str | None, objective: float | None) -> None:
    number = len(run.trials) + 1
    trial = Trial(number, dict(config), proposed_t=float(number))
    trial.kind, trial.objective = kind, objective
    run.trials[number] = trial


def speed(config: Mapping[str, Any]) -> float:
    """Best at num_nodes 1, tp 2, mbs 5."""
    return config["tp"] * 10.0 - abs(config["mbs"] - 5) - config["num_nodes"]


def search(policy: Policy, trials: int, landscape: Callable[..., float | None]) -> Run:
    run = Run(Path())
    for _ in range(trials):
        proposal = policy.propose(run, max_nodes=64)
        assert proposal is not None
        value = landscape(proposal.config)
        add(run, proposal.config, "oom" if value is None else "ok", value)
    return run


def test_every_valid_configuration_comes_once_and_then_none(make_space: Make) -> None:
    space = make_space(constraints="['mbs * tp <= 8']")
    policy, run = make_policy(space, seed=0), Run(Path())
    while (proposal := policy.propose(run, max_nodes=2)) is not None:
        assert space.first_violation(proposal.config) is None
        add(run, proposal.config, "ok", speed(proposal.config))
    seen = [tuple(sorted(t.config.items())) for t in run.trials.values()]
    assert len(seen) == len(set(seen)) == 2 * (8 + 4)


def test_equal_seeds_and_histories_give_equal_proposals(make_space: Make) -> None:
    space = make_space()
    first = search(make_policy(space, seed=7), 10, speed)
    again = search(make_policy(space, seed=7), 10, speed)
    other = search(make_policy(space, seed=8), 10, speed)
    configs = [[t.config for t in run.trials.values()] for run in (first, again, other)]
    assert configs[0] == configs[1]
    assert configs[0] != configs[2]


def test_no_proposal_is_wider_than_the_allocation(make_space: Make) -> None:
    policy, run = make_policy(make_space(), seed=0), Run(Path())
    while (proposal := policy.propose(run, max_nodes=1)) is not None:
        assert proposal.config["num_nodes"] == 1
        add(run, proposal.config, "ok", speed(proposal.config))
    assert len(run.trials) == 16


def test_running_trials_are_not_proposed_again(make_space: Make) -> None:
    policy = make_policy(make_space(), seed=0)
    run = search(policy, 8, speed)
    for _ in range(6):
        proposal = policy.propose(run, max_nodes=2)
        assert proposal is not None
        assert proposal.by == "bayesian"
        assert proposal.config not in [t.config for t in run.trials.values()]
        add(run, proposal.config, None, None)


def test_a_search_of_nothing_but_failures_goes_on(make_space: Make) -> None:
    run = search(make_policy(make_space(), seed=0), 20, lambda _: None)
    assert len(run.trials) == 20


def test_lost_nodes_say_nothing_about_a_configuration(make_space: Make) -> None:
    space = make_space()
    policy = make_policy(space, seed=0)
    run = search(policy, 8, speed)
    before = policy.propose(run, max_nodes=2)
    for trial in run.trials.values():
        if trial.kind == "ok" and trial is not run.best:
            trial.kind, trial.objective = "node_failure", None
            break
    after = policy.propose(run, max_nodes=2)
    assert before is not None and after is not None
    assert "0 failures" in before.why and "0 failures" in after.why


def test_a_minimized_objective_is_minimized(make_space: Make) -> None:
    space = make_space(objective="{minimize: step_time}", parameters="{mbs: {range: [1, 200]}}")
    run = search(make_policy(space, seed=0), 40, lambda config: abs(config["mbs"] - 150.0))
    run.goals = [("step_time", False)]
    assert run.best is not None
    assert run.best.objective is not None
    assert run.best.objective <= 2


def test_conditional_parameters_are_left_out_where_inactive(make_space: Make) -> None:
    space = make_space(
        parameters="{zero_stage: [0, 3], secondary_shard: [1, 2], mbs: [1, 2]}",
        conditions="{secondary_shard: 'zero_stage == 3'}",
    )
    policy, run = make_policy(space, seed=1), Run(Path())
    while (proposal := policy.propose(run, max_nodes=1)) is not None:
        assert ("secondary_shard" in proposal.config) == (proposal.config["zero_stage"] == 3)
        add(run, proposal.config, "ok", 1.0)
    assert len(run.trials) == 2 + 4


def test_a_space_too_large_to_list_is_sampled_and_valid(make_space: Make) -> None:
    axes = ", ".join(f"x{i}: {{range: [1, 9]}}" for i in range(9))
    space = make_space(
        trainer="{command: [train]}",
        parameters=f"{{{axes}}}",
        constraints="['x0 < x1', 'x2 * x3 <= 12']",
    )
    rng = np.random.default_rng(0)
    drawn = Candidates(space).draw(2_000, rng, [], max_nodes=1)
    assert len({tuple(c.values()) for c in drawn}) == 2_000
    assert all(c["x0"] < c["x1"] and c["x2"] * c["x3"] <= 12 for c in drawn)


def test_the_few_narrow_trials_of_a_large_space_are_found(make_space: Make) -> None:
    axes = ", ".join(f"x{i}: {{range: [1, 9]}}" for i in range(8))
    space = make_space(
        trainer="{command: [train]}",
        parameters=f"{{num_nodes: {{range: [1, 4000]}}, {axes}}}",
        constraints="['num_nodes >= 20 * x0 + x1']",
    )
    drawn = Candidates(space).draw(10, np.random.default_rng(0), [], max_nodes=21)
    assert len(drawn) == 10
    assert {(c["num_nodes"], c["x0"], c["x1"]) for c in drawn} == {(21, 1, 1)}


def frontier(config: Mapping[str, Any]) -> float | None:
    """A rough picture of Dash et al.'s Table IV: most fail for memory, the rest trade bubbles
    against communication."""
    tp, pp, mbs, gas = (config[k] for k in ("tp", "pp", "mbs", "gas"))
    shard = tp * pp
    memory_gb = 175 * (6 + (12 if config["zero_stage"] == 0 else 1)) / shard + 1.2 * mbs
    if memory_gb > 64:
        return None
    bubble = (pp - 1) / gas
    return 60 / (1 + bubble) * (1 - 0.06 * tp) * (mbs / (mbs + 3))


def test_the_search_beats_random_choice_on_a_landscape_of_failures() -> None:
    space = load_space("gpt_175b_frontier_table4")
    ours, random = [], []
    for seed in range(2):
        # A made-up landscape, of which the cost model knows nothing.
        policy = DeepHyperPolicy(Problem(space, seed), num_initial=5)
        best = search(policy, 50, frontier).best
        draws = Candidates(space).draw(50, np.random.default_rng(seed), [], max_nodes=64)
        ours.append(best.objective if best and best.objective else 0.0)
        random.append(max(frontier(c) or 0.0 for c in draws))
    assert statistics.mean(ours) > 1.05 * statistics.mean(random)


def test_few_successes_among_many_failures_are_enough_to_learn_from() -> None:
    space = load_space("gpt_175b_frontier_table4")
    draws = Candidates(space).draw(200, np.random.default_rng(0), [], max_nodes=64)
    known = [c for c in draws if c["tp"] * c["pp"] < 64][:57]
    known += [c for c in draws if c["tp"] * c["pp"] >= 64][:3]
    run = Run(Path())
    for config in known:
        runs = config["tp"] * config["pp"] >= 64
        add(run, config, "ok" if runs else "oom", 20.0 + len(run.trials) if runs else None)
    proposals = [make_policy(space, seed, "deephyper").propose(run, 64) for seed in range(8)]
    split = [p.config["tp"] * p.config["pp"] >= 64 for p in proposals if p]
    assert all(p and p.by == "bayesian" for p in proposals)
    assert sum(split) >= 5  # one in ten of all configurations
