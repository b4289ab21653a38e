"""``--warm-start``: a search that begins with what earlier runs taught the cost model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from analysis.prediction.pricing import Pricing
from analysis.run.fold import read_run
from search_spaces import ValidConfigs, load_space
from workflows.cli.main import main
from workflows.simulation.workload import true_pricing

OTHER, OWN = "gpt_22b_frontier", "gpt_175b_frontier"
# A cluster that is not as the cost model has it, in the same way for both models.
CLUSTER = "nodes=128,model_error=1,misfit=0,noise=0"
SIMULATED = ["--launcher", "simulate", "--simulate", CLUSTER, "--no-report"]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("earlier") / "run"
    assert main(["search", OTHER, *SIMULATED, "--trials", "12", "--run-dir", str(run)]) == 0
    return run


def error(pricing: Pricing) -> float:
    """How far step times are off on that cluster, in the mean, as a logarithm."""
    truth = true_pricing(pricing.space, 1.0, 0)
    drawn = ValidConfigs(pricing.space).sample(300, np.random.default_rng(0))
    columns = pricing.space.raw_columns(drawn)
    expected, true = (p.model.predict(p.jobs(columns)).step_time_s for p in (pricing, truth))
    return float(np.abs(np.log(expected / true)).mean())


def test_a_run_of_another_model_makes_predictions_better(earlier: Path) -> None:
    cold, warm = Pricing(load_space(OWN)), Pricing(load_space(OWN))
    warm.learn(read_run(earlier), Pricing(load_space(str(earlier / "space.yaml"))))
    assert error(warm) < 0.5 * error(cold)


def test_only_a_run_of_the_same_space_makes_predictions_surer_than_they_were(earlier: Path) -> None:
    run, own = read_run(earlier), load_space(str(earlier / "space.yaml"))
    same, other = Pricing(load_space(OTHER)), Pricing(load_space(OWN))
    before = same.model.log_sd
    assert other.model.log_sd == before
    same.learn(run, Pricing(own))
    other.learn(run, Pricing(own))
    assert same.model.log_sd < 0.7 * before and other.model.log_sd == before


def test_what_a_run_taught_of_a_machine_stays_there(earlier: Path) -> None:
    elsewhere = Pricing(load_space("llama_8b_dgx_h100"))
    before = elsewhere.model.constants
    elsewhere.learn(read_run(earlier), Pricing(load_space(str(earlier / "space.yaml"))))
    after = elsewhere.model.constants
    assert (after.gemm_share, after.inter_node_share) == (
        before.gemm_share,
        before.inter_node_share,
    )


def test_a_calibrated_prediction_says_what_it_rests_on(
    earlier: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = read_run(earlier).trials.values()
    failed = sum(t.kind == "oom" for t in trials)
    count = failed + sum(t.ok for t in trials)
    assert main(["predict", OTHER, "--calibrate", str(earlier), "--top", "1"]) == 0
    said = capsys.readouterr().out.splitlines()[0]
    assert said == f"calibrated with {count} trials, {failed} of them out of memory"


def test_a_run_with_nothing_in_common_is_refused(
    earlier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = yaml.safe_load(Path(load_space("llama_8b_dgx_h100").file).read_text())
    space["trainer"] = {"command": ["train", "{tp}"], "framework": "nanotron"}
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(space))
    arguments = ["search", str(path), "--launcher", "simulate", "--run-dir", str(tmp_path / "run")]
    assert main([*arguments, "--warm-start", str(earlier)]) == 2
    said = capsys.readouterr().err
    assert str(earlier / "space.yaml") in said and "another framework, GPU and cluster" in said


@pytest.mark.parametrize(
    "arguments", [["predict", OWN, "--calibrate"], ["search", OWN, *SIMULATED, "--warm-start"]]
)
def test_a_run_whose_cluster_lacks_a_fact_that_its_trials_need_is_refused_by_name(
    earlier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    lacking = tmp_path / "lacking"
    lacking.mkdir()
    (lacking / "journal.jsonl").write_bytes((earlier / "journal.jsonl").read_bytes())
    space = yaml.safe_load((earlier / "space.yaml").read_text())
    del space["cluster"]["nic"]
    (lacking / "space.yaml").write_text(yaml.safe_dump(space))
    assert main([*arguments, str(lacking)]) == 2
    said = capsys.readouterr().err
    assert str(lacking / "space.yaml") in said and "nic" in said


def test_a_run_that_no_price_can_be_given_for_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "space.yaml").write_text(
        "version: 1\ncluster: frontier\ntrainer: {command: [train]}\nparameters: {a: [1, 2]}\n"
        "objective: {maximize: speed}\n"
    )
    arguments = ["search", OWN, *SIMULATED, "--run-dir", str(tmp_path / "run")]
    assert main([*arguments, "--warm-start", str(folder)]) == 2
    said = capsys.readouterr().err
    assert str(folder / "space.yaml") in said and "--warm-start" in said
    assert not (tmp_path / "run").exists()
