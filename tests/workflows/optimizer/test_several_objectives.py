"""A search for a Pareto front: where its proposals aim, and what it finds."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from analysis.pareto import non_dominated
from analysis.prediction.goal import Scalarization, merits, spread_ranks
from analysis.prediction.goodput import PRICES as NAMES, Failures
from analysis.prediction.pricing import Pricing
from analysis.run.fold import Run, read_run
from analysis.run.folder import RunFolder
from analysis.run.results import ResultsFile
from analysis.run.trial import Trial
from search_spaces import Cluster, Objective, SearchSpace, load_space
from search_spaces.points.candidates import Candidates
from slurm.outcome.classify import Outcome
from slurm.outcome.kinds import Kind
from tests.support.objectives import objective_values
from workflows.cli.main import main
from workflows.optimizer.builtin import DeepHyperPolicy, RandomPolicy
from workflows.optimizer.model_guided import MeshtunePolicy
from workflows.optimizer.policy import Policy, Problem, Proposal
from workflows.optimizer.registry import make_policy
from workflows.search.trials import checked_outcome, judge

Make = Callable[..., SearchSpace]
Answer = Callable[[Mapping[str, Any]], Mapping[str, float] | None]
TOKENS, NODES = Objective("tokens_per_second", True), Objective("num_nodes", False)
PRICED = """\
version: 1
name: two
model: gpt_22b
cluster: frontier
trainer: {builtin: {data: no/such/tokens, precision: bf16}}
parameters:
  num_nodes: [1, 2, 4, 8]
  tp: [1, 2, 4, 8]
  pp: [1, 2, 4]
  mbs: [1, 2, 4]
  gas: [4, 8, 16]
objective: [maximize: tokens_per_second, minimize: num_nodes]
budget: {trials: 12}
"""


@pytest.fixture
def priced(tmp_path: Path) -> SearchSpace:
    path = tmp_path / "two.yaml"
    path.write_text(PRICED)
    return load_space(path)


def predicted(space: SearchSpace) -> Answer:
    """What the uncalibrated cost model expects; None where room is in doubt."""
    pricing = Pricing(space)

    def answer(config: Mapping[str, Any]) -> Mapping[str, float] | None:
        prediction = pricing.predict([config])
        figures = {o.key: pricing.figure(o.key, prediction) for o in space.objectives}
        reached = {key: float(figure[0]) for key, figure in figures.items() if figure is not None}
        assert len(reached) == len(figures)
        return reached if prediction.fits[0] > 0.9 else None

    return answer


def tell(run: Run, proposal: Proposal, reached: Mapping[str, float] | None) -> None:
    number = len(run.trials) + 1
    trial = Trial(number, dict(proposal.config), 0.0, proposal.by, proposal.why, proposal.expected)
    trial.kind, trial.ended_t = "ok" if reached else "oom", float(number)
    if reached:
        trial.objectives, trial.objective = reached, next(iter(reached.values()))
    run.trials[number] = trial


def search(policy: Policy, count: int, answer: Answer) -> Run:
    objectives = policy.problem.space.objectives
    run = Run(Path(), goals=[(one.key, one.maximize) for one in objectives])
    for _ in range(count):
        proposal = policy.propose(run, max_nodes=1_000)
        assert proposal is not None
        tell(run, proposal, answer(proposal.config))
    return run


# ---- weights and aims ----


@pytest.mark.parametrize("count", [2, 3])
def test_weights_cover_the_simplex_evenly_from_the_first_few_proposals_on(count: int) -> None:
    for seed in range(5):
        drawn = np.array([Scalarization.weights(count, seed, n) for n in range(12)])
        assert drawn.sum(axis=1) == pytest.approx(1.0) and (drawn >= 0).all()
        assert (drawn.max(axis=0) > 0.5).all()  # somebody cares for each of them most
    every = np.array([Scalarization.weights(count, 0, n) for n in range(3000)])
    assert every.mean(axis=0) == pytest.approx(1 / count, abs=0.01)


def test_weights_are_a_function_of_the_seed_and_the_number() -> None:
    assert Scalarization.weights(3, 4, 7).tolist() == Scalarization.weights(3, 4, 7).tolist()
    assert Scalarization.weights(3, 4, 7).tolist() != Scalarization.weights(3, 5, 7).tolist()
    assert Scalarization.weights(3, 4, 7).tolist() != Scalarization.weights(3, 4, 8).tolist()


def test_aims_find_the_whole_front_also_in_its_dent() -> None:
    # A concave front: every weighted sum is greatest at one of its ends.
    x = np.linspace(0, 1, 9)
    known = np.stack([x, 1 - x - 0.2 * np.sin(np.pi * x)], axis=1)
    known = np.concatenate([known, known - 0.2])
    found = {
        int(
            np.argmax(
                Scalarization.from_weights(Scalarization.weights(2, 0, n), known).value(known)
            )
        )
        for n in range(200)
    }
    assert found == set(range(9))
    sums = {int(np.argmax(known @ Scalarization.weights(2, 0, n))) for n in range(200)}
    assert sums == {0, 8}


def test_an_aim_does_not_depend_on_an_objectives_unit_or_range() -> None:
    rng = np.random.default_rng(1)
    known = rng.random((40, 2))
    stretched = known * [1.0, 50.0] + [0.0, 7.0]
    for number in range(20):
        w = Scalarization.weights(2, 0, number)
        order = np.argsort(Scalarization.from_weights(w, known).value(known))
        assert (
            order.tolist()
            == np.argsort(Scalarization.from_weights(w, stretched).value(stretched)).tolist()
        )


def test_an_objective_that_is_the_same_everywhere_does_not_matter() -> None:
    known = np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
    assert np.argmax(Scalarization.from_weights(np.array([0.01, 0.99]), known).value(known)) == 2


def test_figures_without_logarithms_are_compared_as_they_are() -> None:
    loss = Objective("loss", False)
    at = merits((TOKENS, loss), np.array([[1.0, -2.0], [np.e, 0.0]]))
    assert at == pytest.approx(np.array([[0.0, 2.0], [1.0, 0.0]]))


def test_what_is_kept_for_the_search_holds_the_whole_front() -> None:
    rng = np.random.default_rng(2)
    known = rng.random((2000, 2))
    best = np.argsort(spread_ranks(known))[:200]
    assert set(np.flatnonzero(non_dominated(known))) <= set(best.tolist())


# ---- what a trial reached ----


def test_figures_follow_from_the_configuration_and_the_result(priced: SearchSpace) -> None:
    result = {
        "tokens_per_second": 500.0,
        "step_time_s": {"median": 2.0},
        "energy_joules": 10_000.0,
        "peak_memory_bytes": 7,
    }
    config = {"num_nodes": 4, "tp": 1, "pp": 1, "mbs": 1, "gas": 4}
    assert objective_values(priced, config, result) == {
        "tokens_per_second": 500.0,
        "num_nodes": 4.0,
    }
    ended, reached, _ = judge(priced, Outcome(Kind.OK, result=result), config)
    assert ended.kind is Kind.OK
    assert reached == {"tokens_per_second": 500.0, "num_nodes": 4.0}
    for key, expected in (
        ("node_seconds_per_token", 4 / 500),
        ("joules_per_token", 10_000 / (500 * 2.0 * 5)),  # five measured steps
    ):
        path = Path(priced.file).with_name(f"{key}.yaml")
        path.write_text(PRICED.replace("minimize: num_nodes", f"minimize: {key}"))
        assert objective_values(load_space(path), config, result)[key] == pytest.approx(expected)


PRICES = "price_per_node_hour: 3.6, price_per_kwh: 0.36, co2_grams_per_kwh: 500, power_watts: 700"


@pytest.mark.parametrize(
    ("key", "expected"),
    [("cost", 1e9 * (3.6 * 4 / 500 / 3600 + 0.36 * 2 / 3.6e6)), ("co2", 1e9 * 0.5 * 2 / 3.6e6)],
)
def test_money_and_carbon_of_a_billion_tokens_follow_from_time_and_energy(
    tmp_path: Path, key: str, expected: float
) -> None:
    cluster = Cluster.named("frontier").model_dump(exclude_defaults=True)
    cluster |= yaml.safe_load(f"{{{PRICES}}}")
    content = yaml.safe_load(PRICED) | {"cluster": cluster, "objective": {"minimize": key}}
    path = tmp_path / "priced.yaml"
    path.write_text(yaml.safe_dump(content))
    space, config = load_space(path), {"num_nodes": 4, "tp": 1, "pp": 1, "mbs": 1, "gas": 4}
    result = {
        "tokens_per_second": 500.0,
        "step_time_s": {"median": 2.0},
        "energy_joules": 10_000.0,  # of five steps of 1,000 tokens: 2 J a token
    }
    assert objective_values(space, config, result)[key] == pytest.approx(expected)
    told = checked_outcome(space, Outcome(Kind.OK, result=result), config).result
    assert told is not None and told[key] == pytest.approx(expected)
    pricing = Pricing(space)
    prediction = pricing.predict([config])
    figure = pricing.figure(key, prediction)
    assert figure is not None
    prices = yaml.safe_load(f"{{{PRICES}}}")
    joules, node_s = prediction.joules_per_token[0], 4 / prediction.tokens_per_second[0]
    by_hand = {
        "cost": 1e9 * (3.6 * node_s / 3600 + 0.36 * joules / 3.6e6),
        "co2": 1e9 * prices["co2_grams_per_kwh"] / 1000 * joules / 3.6e6,
    }
    assert figure[0] == pytest.approx(by_hand[key])
    columns = Failures.expected(space).goodput(prediction).columns(2e9)
    [told_total] = columns[f"{NAMES[key]}_to_train"]
    assert told_total > 2 * figure[0]  # lost time is paid as well


def test_a_missing_counter_is_a_crash_that_says_why(tmp_path: Path) -> None:
    path = tmp_path / "energy.yaml"
    path.write_text(PRICED.replace("minimize: num_nodes", "minimize: energy_joules"))
    result = {"tokens_per_second": 1.0, "energy_source": "none (RAPL: not readable)"}
    config = {"num_nodes": 1, "tp": 1, "pp": 1, "mbs": 1, "gas": 4}
    ended, _, _ = judge(load_space(path), Outcome(Kind.OK, result=result), config)
    assert ended.kind is Kind.CRASH and "none (RAPL: not readable)" in ended.message
    # After a fault it is this trial's own: others may well reach their objective.
    fault = Outcome(Kind.OK, result=result, message="exit code -6 after its last step")
    ended, _, _ = judge(load_space(path), fault, config)
    assert ended.kind is Kind.CRASH
    assert ended.message.startswith("exit code -6 after its last step; ")


def test_a_result_that_lacks_what_a_figure_follows_from_is_a_crash_that_names_both(
    tmp_path: Path,
) -> None:
    path = tmp_path / "energy.yaml"
    path.write_text(PRICED.replace("minimize: num_nodes", "minimize: joules_per_token"))
    outcome = Outcome(Kind.OK, result={"tokens_per_second": 1.0, "step_time_s": {"median": 1.0}})
    config = {"num_nodes": 1, "tp": 1, "pp": 1, "mbs": 1, "gas": 4}
    ended, reached, _ = judge(load_space(path), outcome, config)
    assert (ended.kind, reached) == (Kind.CRASH, {})
    assert "'energy_joules', from which 'joules_per_token' follows" in ended.message


# ---- what is proposed ----


def test_the_cost_model_finds_the_best_of_every_width_in_a_few_trials(priced: SearchSpace) -> None:
    answer = predicted(priced)
    run = search(make_policy(priced, seed=0), 14, answer)
    best: dict[int, float] = {}
    for raw in Candidates(priced).draw(10_000, np.random.default_rng(0), [], 8):
        if reached := answer(raw):
            best[raw["num_nodes"]] = max(
                best.get(raw["num_nodes"], 0.0), reached["tokens_per_second"]
            )
    found = {t.config["num_nodes"]: t.objectives["tokens_per_second"] for t in run.front()}
    assert found.keys() == best.keys()
    for width, tokens_per_second in best.items():
        assert found[width] > 0.95 * tokens_per_second


def test_a_proposal_says_what_it_aims_at_and_expects_the_first_objective(
    priced: SearchSpace,
) -> None:
    proposal = make_policy(priced, seed=0).propose(Run(Path()), max_nodes=8)
    assert proposal is not None and "weights: " in proposal.why
    assert "tokens_per_second" in proposal.why and "num_nodes" in proposal.why
    [tokens_per_second] = Pricing(priced).predict([proposal.config]).tokens_per_second
    assert proposal.expected["objective"] == pytest.approx(tokens_per_second)


@pytest.mark.parametrize("policy", ["meshtune", "deephyper"])
def test_a_continued_search_proposes_what_an_unbroken_one_does(
    priced: SearchSpace, policy: str
) -> None:
    answer = predicted(priced)
    few = partial(DeepHyperPolicy, num_initial=3)
    make = {"meshtune": MeshtunePolicy, "deephyper": few}[policy]
    unbroken = make(Problem(priced, 3))
    run = search(unbroken, 8, answer)
    expected = unbroken.propose(run, max_nodes=8)
    assert make(Problem(priced, 3)).propose(run, max_nodes=8) == expected


def test_a_figure_without_a_price_leaves_the_search_to_deephyper(tmp_path: Path) -> None:
    path = tmp_path / "loss.yaml"
    path.write_text(PRICED.replace("minimize: num_nodes", "minimize: loss.final"))
    proposal = make_policy(load_space(path), seed=0).propose(Run(Path()), max_nodes=8)
    assert proposal is not None and proposal.by == "random"


def test_without_a_model_the_front_is_found_better_than_by_chance(make_space: Make) -> None:
    space = make_space(
        objective="[maximize: gain, minimize: cost]",
        parameters="{a: {range: [1, 30]}, b: {range: [1, 30]}, c: {range: [1, 5]}}",
        trainer="{command: [train]}",
    )

    def answer(config: Mapping[str, Any]) -> Mapping[str, float]:
        waste = (config["b"] - 15) ** 2 / 20 + config["c"]
        return {"gain": config["a"] / waste, "cost": config["a"] * (1 + waste)}

    def area(policy: Policy) -> float:
        """Of what the front leaves out below and right of it, in logarithms; less is better."""
        run = search(policy, 30, answer)
        reached = [
            (np.log(t.objectives["gain"]), np.log(t.objectives["cost"])) for t in run.front()
        ]
        axis = np.linspace(np.log(2), np.log(60), 200)
        return float(np.mean([max((g for g, c in reached if c <= x), default=-4.0) for x in axis]))

    problems = [Problem(space, seed) for seed in range(2)]
    ours = [area(DeepHyperPolicy(problem, num_initial=6)) for problem in problems]
    chance = [area(RandomPolicy(problem)) for problem in problems]
    assert np.mean(ours) > np.mean(chance) + 0.3


# ---- a whole search ----


def test_a_simulated_search_ends_with_its_front(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(PRICED)
    run_dir = tmp_path / "run"
    arguments = ["search", str(path), "--launcher", "simulate", "--simulate", "nodes=8"]
    assert main([*arguments, "--run-dir", str(run_dir), "--no-report"]) == 0
    said = capsys.readouterr().out
    run = read_run(run_dir)
    numbers = [t.number for t in run.front()]
    assert f"front: {len(numbers)} of " in said
    assert main(["status", str(run_dir)]) == 0
    status = capsys.readouterr().out
    assert all(f"trial {number:4d}  " in status for number in numbers)
    with (run_dir / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {int(r["job_id"]) for r in rows if r["pareto_efficient"] == "True"} == set(numbers)
    for row in rows:
        trial = run.trials[int(row["job_id"])]
        if trial.ok:
            assert float(row["objective_0"]) == trial.objectives["tokens_per_second"]
            assert float(row["objective_1"]) == trial.config["num_nodes"]
        else:
            assert row["objective_0"] == row["objective_1"] == f"F_{trial.kind}"
    assert "objective" not in rows[0]
    replayed = tmp_path / "replay.json"
    table = str(run_dir / "results.csv")
    assert main(["replay", table, "--seeds", "1", "--json", str(replayed)]) == 0
    assert json.loads(replayed.read_text())["overall"]["landscapes"] == 1


def test_a_journal_without_several_objectives_is_read_and_written_as_before(
    tmp_path: Path, make_space: Make
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create(make_space())
    run = Run(folder.path, goals=[("speed", True)])
    run.trials[1] = Trial(1, {"tp": 1}, 0.0, kind="ok", objective=2.0, result={"speed": 2.0})
    ResultsFile(folder).write(run)
    text = (folder.path / "results.csv").read_text()
    assert text == "p:tp,objective,job_id,job_status,m:speed\n1,2.0,1,DONE,2.0\n"


def test_energy_is_simulated_where_the_cluster_states_its_power(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PRICED.replace("minimize: num_nodes", "minimize: energy_joules")
    path = tmp_path / "two.yaml"
    path.write_text(text)
    arguments = ["search", str(path), "--launcher", "simulate", "--trials", "3", "--no-report"]
    assert main([*arguments, "--run-dir", str(tmp_path / "run")]) == 0
    assert all(t.objectives["energy_joules"] > 0 for t in read_run(tmp_path / "run").front())
    cluster = "{name: plain, gpus_per_node: 8, memory_gib: 64, peak_bf16_tflops: 190, "
    cluster += "links: [{level: node, gpus: 8, gb_per_s: 50}], nic: {count: 4, gb_per_s: 25}}"
    path.write_text(text.replace("cluster: frontier", f"cluster: {cluster}"))
    assert main([*arguments, "--run-dir", str(tmp_path / "other")]) == 2
    said = capsys.readouterr().err
    assert "does not measure 'energy_joules'" in said and "power_watts" in said
