"""Whole searches on a simulated cluster: the real driver, pool, journal and report."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.prediction.pricing import Pricing
from analysis.run.fold import Run, read_run
from analysis.run.folder import RunFolder
from analysis.run.journal import Journal
from search_spaces import SearchSpace, load_space
from slurm.simulated.launcher import EPOCH
from support.run_book import resealed
from workflows.cli.main import main
from workflows.optimizer.registry import make_policy
from workflows.search.budget import Budget
from workflows.search.driver import Driver
from workflows.search.session import Search, dry_run, run_session
from workflows.search.stopping import DONE, Ending
from workflows.search.trials import TrialFactory
from workflows.simulation.workload import (
    Answers,
    SimulationError,
    SpaceWorkload,
    simulated_launcher,
)

SPACE = """\
version: 1
name: paper
model: gpt_22b
cluster:
  name: paper
  gpus_per_node: 4
  num_nodes: 40
  memory_gib: 64
  power_watts: 300
  memory_gb_per_s: 1600
  peak_bf16_tflops: 200
  links: [{level: node, gpus: 4, gb_per_s: 100}]
  nic: {count: 4, gb_per_s: 25}
trainer: {builtin: {data: no/such/tokens, precision: bf16}}
parameters:
  num_nodes: [2, 4, 8]
  tp: [1, 2, 4]
  pp: [1, 2, 4, 8]
  mbs: [1, 2, 4, 8]
  gas: [8, 16, 32]
  zero_stage: [0, 1]
objective: {maximize: tflops_per_gpu}
trial: {timeout: 20m, no_progress_timeout: 5m, early_stop: false}
budget: {trials: 40}
finalists: false
"""
CALM = "noise=0,node_noise=0,crash=0,hang=0,launch_failure=0,node_failures_per_day=0"
TROUBLED = "crash=0.1,hang=0.1,launch_failure=0.1,node_failures_per_day=5"


@pytest.fixture
def space(tmp_path: Path) -> SearchSpace:
    path = tmp_path / "paper.yaml"
    path.write_text(SPACE)
    return load_space(path)


def flops_and_bubble(space: SearchSpace) -> Answers:
    """A model on the back of an envelope; the cost model's own tests are elsewhere."""

    def answers(configs: Sequence[Mapping[str, Any]]) -> tuple[list[float], ...]:
        step_times_s, needed_bytes = [], []
        for config in configs:
            facts: dict[str, Any] = space.facts(config)
            tp, pp, mbs, gas = (facts[name] for name in ("tp", "pp", "mbs", "gas"))
            tokens = facts["global_batch_size"] * 2048 / facts["world_size"]
            flops = 6 * facts["num_parameters"] * tokens
            efficiency = 0.5 * mbs / (mbs + 1) * (1 - 0.05 * tp)
            step_times_s.append(flops / (200e12 * efficiency) * (1 + (pp - 1) / gas))
            needed_bytes.append(16 * facts["num_parameters"] / (tp * pp) + mbs * 1e9)
        return step_times_s, needed_bytes, [0.9 * needed for needed in needed_bytes]

    return answers


def search(
    space: SearchSpace, path: Path, options: str, start: float = EPOCH, trials: int = 40
) -> tuple[Ending, Run]:
    """Search without the command line, the report and a proposer that thinks."""
    launcher = simulated_launcher(space, options, start, flops_and_bubble(space))
    folder = RunFolder(path)
    folder.create(space)
    journal = Journal(folder.path, launcher.clock.time, sync=False)
    driver = Driver(
        space=space,
        folder=folder,
        journal=journal,
        launcher=launcher,
        policy=make_policy(space, 0, "random"),
        factory=TrialFactory(space, folder, "meshtune-simulated", "tokens"),
        budget=Budget(trials=trials),
        seed=0,
        listen=lambda *_: None,
    )
    try:
        return driver.run(), read_run(folder.path)
    finally:
        journal.close()


def held(run: Run) -> Iterable[tuple[float, float, tuple[str, ...]]]:
    for trial in run.trials.values():
        for attempt in trial.attempts:
            assert attempt.ended_t is not None
            yield attempt.started_t, attempt.ended_t, attempt.nodes


def test_finals_and_early_stops_are_the_same_in_every_run_and_save_node_time(
    tmp_path: Path,
) -> None:
    runs, journals = [], []
    for name, early in (("whole", False), ("early", True), ("again", True)):
        path = tmp_path / f"{name}.yaml"
        text = SPACE.replace("finalists: false", "finalists: {max_repeats: 4}")
        path.write_text(text.replace("early_stop: false", f"early_stop: {str(early).lower()}"))
        ending, run = search(load_space(path), tmp_path / name, f"{TROUBLED},noise=0.02", trials=60)
        assert ending == Ending("budget: 60 trials", DONE, "trials")
        runs.append(run)
        journals.append((tmp_path / name / "journal.jsonl").read_text())
    whole, early_run, _ = runs
    assert journals[1] == journals[2]
    stopped = [t for t in early_run.trials.values() if t.stopped_early]
    assert len(stopped) > 5 and not any(t.stopped_early for t in whole.trials.values())
    assert early_run.best is not None and not early_run.best.stopped_early
    for trial in stopped:  # of what a trial measures in whole, the part is right
        [first] = [a for a in trial.attempts if a.kind == "ok"]
        assert first.result["tflops_per_gpu"] == trial.objective
        assert 2 <= len(trial.result["step_time_s"]["all"]) < 5
        other = whole.trials[trial.number]
        if other.ok and len(other.attempts) == len(trial.attempts):
            assert trial.config == other.config
            assert trial.objective == pytest.approx(other.objective, rel=0.2)
            assert trial.node_seconds < other.node_seconds
    assert sum(t.saved_node_s for t in stopped) > 0
    for run in runs:
        answered = [a for t in run.trials.values() for a in t.attempts if a.repeat and a.completed]
        assert 1 <= len(answered) <= 4


def test_equal_seeds_give_the_same_journal_byte_for_byte(
    space: SearchSpace, tmp_path: Path
) -> None:
    names = ("first", "again", "other")
    for name, seed in zip(names, (3, 3, 4), strict=True):
        search(space, tmp_path / name, f"{TROUBLED},seed={seed}", trials=20)
    first, again, other = ((tmp_path / n / "journal.jsonl").read_bytes() for n in names)
    assert first == again
    assert first != other


def test_without_chance_a_trial_gives_what_the_model_says(
    space: SearchSpace, tmp_path: Path
) -> None:
    ending, run = search(space, tmp_path / "run", CALM)
    assert ending.code == DONE
    model = flops_and_bubble(space)
    kinds = {trial.kind for trial in run.trials.values()}
    assert kinds == {"ok", "oom"}
    for trial in run.trials.values():
        (step_s,), (needed_bytes,), (peak_bytes,) = model([trial.config])
        assert trial.ok == (float(needed_bytes) <= 64 * 2**30)
        if trial.ok:
            assert trial.result["step_time_s"]["all"] == pytest.approx([step_s] * 5)
            assert trial.result["peak_memory_bytes"] == int(float(peak_bytes))
            assert trial.elapsed_s > 7 * float(step_s)


def test_figures_agree_with_each_other(space: SearchSpace, tmp_path: Path) -> None:
    _, run = search(space, tmp_path / "run", "noise=0.1")
    for trial in (t for t in run.trials.values() if t.ok):
        assert trial.objective is not None
        result: dict[str, Any] = dict(trial.result)
        median_s, all_s = result["step_time_s"]["median"], result["step_time_s"]["all"]
        assert median_s == statistics.median(all_s)
        tokens = result["global_batch_size"] * 2048
        assert result["tokens_per_second"] == pytest.approx(tokens / median_s)
        assert result["energy_joules"] == pytest.approx(300.0 * result["world_size"] * sum(all_s))
        assert trial.objective == result["tflops_per_gpu"]
        # Six FLOPs per weight and token, and a little for attention and logits.
        flops = 6 * result["parameters"] * tokens / result["world_size"] / median_s
        assert 1.0 < trial.objective * 1e12 / flops < 1.25


def test_troubles_happen_and_no_node_is_ever_in_two_leases(
    space: SearchSpace, tmp_path: Path
) -> None:
    ending, run = search(space, tmp_path / "run", TROUBLED, trials=120)
    assert ending.code == DONE
    kinds = {attempt.kind for trial in run.trials.values() for attempt in trial.attempts}
    assert kinds == {"ok", "oom", "timeout", "crash", "launch_failure", "node_failure"}
    busy: dict[str, float] = {}
    for started_t, ended_t, nodes in sorted(held(run)):
        assert len(nodes) == len(set(nodes))
        assert all(busy.get(node, 0.0) <= started_t for node in nodes)
        busy.update(dict.fromkeys(nodes, ended_t))


def test_a_node_that_was_lost_is_not_leased_again(space: SearchSpace, tmp_path: Path) -> None:
    _, run = search(space, tmp_path / "run", f"{CALM},node_failures_per_day=10", trials=80)
    attempts = [a for t in run.trials.values() for a in t.attempts]
    failed = [a for a in attempts if a.kind == "node_failure"]
    lost = {a.message.split()[-1]: a.ended_t or 0.0 for a in failed}
    assert lost
    for attempt in attempts:
        assert not any(lost.get(n, EPOCH * 2) < attempt.started_t for n in attempt.nodes)


def test_virtual_time_goes_on_where_the_last_session_ended(
    space: SearchSpace, tmp_path: Path
) -> None:
    _, before = search(space, tmp_path / "run", TROUBLED, trials=10)
    ending, after = search(space, tmp_path / "run", TROUBLED, before.last_t, trials=20)
    assert ending == Ending("budget: 20 trials", DONE, "trials")
    assert after.opened_t == [EPOCH, before.last_t]
    assert next(n for n, t in after.trials.items() if t.proposed_t >= before.last_t) == 11


def test_the_allocation_ends_in_virtual_time(space: SearchSpace, tmp_path: Path) -> None:
    ending, run = search(space, tmp_path / "run", f"{CALM},time=2h,nodes=8", trials=10_000)
    assert "before the allocation" in ending.reason
    assert 5400.0 < run.last_t - EPOCH <= 7200.0
    assert not any(trial.running for trial in run.trials.values())


def test_no_more_trials_run_at_once_than_asked(space: SearchSpace, tmp_path: Path) -> None:
    _, run = search(space, tmp_path / "run", "nodes=400,max_concurrent=7")
    changes = [(t, n) for start, end, _ in held(run) for t, n in ((start, 1), (end, -1))]
    assert max(np.cumsum([n for _, n in sorted(changes)])) == 7


def test_a_misfit_is_consistent_and_as_large_as_asked(space: SearchSpace) -> None:
    model = flops_and_bubble(space)
    configs = [
        {"num_nodes": n, "tp": tp, "pp": pp, "mbs": mbs, "gas": gas, "zero_stage": zero}
        for n in (2, 4, 8) for tp in (1, 2, 4) for pp in (1, 2, 4, 8)
        for mbs in (1, 2, 4, 8) for gas in (8, 16, 32) for zero in (0, 1)
        if tp * pp <= 4 * n
    ]  # fmt: skip
    predicted = np.array(model(configs), dtype=float)
    logs = []
    for seed in range(60):
        truth = SpaceWorkload(space, model, 0.3, seed)
        sample = [(seed * 7 + i * 97) % len(configs) for i in range(8)]
        real = np.array([truth.price(configs[i])[:3] for i in sample]).T
        assert np.array_equal(real, np.array([truth.price(configs[i])[:3] for i in sample]).T)
        logs.append(np.log(real / predicted[:, sample]))
    spread = np.std(np.concatenate(logs, axis=1), axis=1)
    assert spread == pytest.approx([0.3, 0.3, 0.3], rel=0.25)
    exact = SpaceWorkload(space, model)
    assert np.array_equal([exact.price(c)[:3] for c in configs[:9]], predicted.T[:9])


def test_another_seed_of_constants_is_another_truth_that_keeps_the_models_shape(
    space: SearchSpace,
) -> None:
    configs = [
        {"num_nodes": 8, "tp": tp, "pp": pp, "mbs": mbs, "gas": 32, "zero_stage": 1}
        for tp in (1, 2, 4) for pp in (1, 2, 4, 8) for mbs in (1, 2, 4)
    ]  # fmt: skip

    def prices(options: str) -> np.ndarray[Any, Any]:
        workload = simulated_launcher(space, options).workload
        return np.array([workload.price(config)[:3] for config in configs])

    options = ("", "model_error=0.5", "model_error=0.5,seed=1", "model_error=0.05")
    model, truth, other, near = map(prices, options)
    assert np.all(truth != model) and np.all(truth != other)
    assert np.array_equal(truth, prices("model_error=0.5"))
    assert np.abs(np.log(near / model)).mean() < np.abs(np.log(truth / model)).mean()
    ranks = [np.argsort(np.argsort(column[:, 0])) for column in (model, truth)]
    assert float(np.dot(*[r - r.mean() for r in ranks]) / np.var(ranks[0]) / len(configs)) > 0.8


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("speed=3", "accepted KEY=VALUE,... with nodes, seed"),
        ("nodes=0", "accepted 1 or more"),
        ("nodes=many", "nodes=many: found 'many', accepted a whole number"),
        ("nodes=10000000", "accepted 200000 or less"),
        ("noise=much", "found 'much', accepted a number"),
        ("node=4", "did you mean 'node"),
        ("crash=1.5", "accepted 1.0 or less"),
        ("noise=-1", "0 or more"),
        ("time=soon", "accepted a duration"),
        ("nodes", "--simulate nodes"),
    ],
)
def test_a_wrong_option_is_named(space: SearchSpace, options: str, complaint: str) -> None:
    with pytest.raises(SimulationError, match=complaint):
        simulated_launcher(space, options, answers=flops_and_bubble(space))


def test_a_search_in_virtual_time_needs_an_end(space: SearchSpace) -> None:
    endless = replace(space, budget=space.budget.model_copy(update={"trials": None}))
    with pytest.raises(SimulationError, match="virtual time has no end"):
        simulated_launcher(endless, "", answers=flops_and_bubble(space))
    assert simulated_launcher(endless, "time=1h", answers=flops_and_bubble(space)).nodes()


def test_an_objective_that_is_not_simulated_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "loss.yaml"
    path.write_text(SPACE.replace("maximize: tflops_per_gpu", "minimize: loss"))
    space = load_space(path)
    with pytest.raises(SimulationError, match="does not measure 'loss', only tflops_per_gpu"):
        simulated_launcher(space, "", answers=flops_and_bubble(space))


def test_a_session_is_on_record_in_virtual_time(space: SearchSpace, tmp_path: Path) -> None:
    launcher = simulated_launcher(space, TROUBLED, answers=flops_and_bubble(space))
    folder = RunFolder(tmp_path / "run")
    search = Search(space, folder, launcher, budget=Budget(trials=12))
    assert run_session(search, report=False) == DONE
    events = [json.loads(line) for line in (folder.path / "journal.jsonl").open()]
    assert (events[0]["t"], events[0]["launcher"]) == (EPOCH, "simulate")
    assert {event["by"] for event in events if event["event"] == "proposed"} - {"random"}
    rows = (folder.path / "results.csv").read_text().splitlines()
    assert len(rows) == 1 + len(read_run(folder.path).trials)


def test_the_cost_model_answers_unless_told_otherwise(
    space: SearchSpace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["search", space.file, "--launcher", "simulate", "--simulate", "nodes=16"]
    arguments += ["--run-dir", str(tmp_path / "run"), "--trials", "5", "--no-report"]
    assert main(arguments) == DONE
    assert "budget: 5 trials" in capsys.readouterr().out
    run = read_run(tmp_path / "run")
    for trial in (t for t in run.trials.values() if t.ok):
        predicted = Pricing(space).predict([trial.config]).step_time_s[0]
        assert trial.result["step_time_s"]["median"] == pytest.approx(predicted, rel=0.2)
    assert run.best


def test_what_the_framework_refuses_is_an_invalid_trial(tmp_path: Path) -> None:
    """nanotron wants a pipeline filled; stages that fit easily are no reason to run."""
    path = tmp_path / "unfilled.yaml"
    command = "{command: [train], framework: nanotron}"
    text = SPACE.replace("{builtin: {data: no/such/tokens, precision: bf16}}", command)
    path.write_text(text.replace("gas: [8, 16, 32]", "gas: [2, 8]"))
    space = load_space(path)
    workload = simulated_launcher(space, CALM).workload
    config = {"num_nodes": 8, "tp": 4, "pp": 8, "mbs": 1, "zero_stage": 1}
    filled, unfilled = (workload.price({**config, "gas": gas}) for gas in (8, 2))
    assert (filled.refused, unfilled.refused) == (False, True)
    assert unfilled.needed_bytes < 64 * 2**30


def test_a_space_that_the_cost_model_cannot_price_is_refused(
    make_space: Callable[..., SearchSpace], tmp_path: Path
) -> None:
    with pytest.raises(SimulationError, match="cannot be simulated: the space has no model"):
        simulated_launcher(make_space(), "")
    path = tmp_path / "linkless.yaml"
    path.write_text(SPACE.replace("  links: [{level: node, gpus: 4, gb_per_s: 100}]\n", ""))
    with pytest.raises(SimulationError, match="cannot be simulated: cluster paper states no links"):
        simulated_launcher(load_space(path), "")


def test_a_dry_run_needs_no_data(space: SearchSpace, tmp_path: Path) -> None:
    launcher = simulated_launcher(space, "", answers=flops_and_bubble(space))
    lines = list(dry_run(Search(space, RunFolder(tmp_path / "run"), launcher, 0)))
    assert "on 40 nodes (simulate)" in lines[0]
    assert not (tmp_path / "run").exists()


def test_real_and_simulated_results_are_never_in_one_run(
    space: SearchSpace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make_space: Callable[..., SearchSpace],
) -> None:
    search(space, tmp_path / "run", CALM, trials=2)
    arguments = ["search", space.file, "--run-dir", str(tmp_path / "run")]
    assert main([*arguments, "--launcher", "local"]) == 2
    assert "holds a simulated run" in capsys.readouterr().err
    resealed(tmp_path / "run" / "journal.jsonl", '"simulate"', '"srun"')
    assert main([*arguments, "--launcher", "simulate"]) == 2
    assert "holds a real run (srun)" in capsys.readouterr().err
    assert main([*arguments, "--simulate", "nodes=4"]) == 2
    assert "--simulate goes with --launcher simulate" in capsys.readouterr().err
