"""Probes: what is derived from a space, which are chosen, and what a search learns from them."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import Pricing, RunFolder, read_run, write_report
from search_spaces import SearchSpace, load_space
from workflows.cli.main import main
from workflows.search.budget import Budget
from workflows.search.probing import ProbeError, plan, shallower, wanted

SPACE: dict[str, Any] = {
    "version": 1,
    "name": "own",
    "model": "llama_8b",
    "cluster": "dgx_h100",
    "trainer": {"adapter": "megatron-lm", "entry": "pretrain_gpt.py"},
    "parameters": {
        "num_nodes": [4],
        "tp": [1, 2, 4, 8],
        "pp": [1, 2, 4],
        "mbs": [1, 2, 4],
        "gas": {"log2": [1, 64]},
        "zero_stage": [0, 1],
        "recompute": ["none", "full"],
    },
    "constraints": ["global_batch_size == 256", "tp * pp <= 32"],
    "objective": {"maximize": "tokens_per_second"},
    "budget": {"trials": 4},
}


def space(**changes: Any) -> SearchSpace:
    return load_space({**SPACE, **changes})


def test_a_trainer_is_told_the_depth_of_each_space() -> None:
    config = {"num_nodes": 1, "tp": 2, "pp": 2, "mbs": 1, "gas": 8, "zero_stage": 1}
    deep, shallow = space(), shallower(space())
    told = [
        one.command({**config, "num_nodes": nodes, "recompute": "none"}, "trial")
        for one, nodes in ((deep, 4), (shallow, 1))
    ]
    layers = [argv[argv.index("--num-layers") + 1] for argv in told]
    assert layers == ["32", "4"]
    assert shallow.model is not None and shallow.model.num_layers == 4


def test_a_depth_in_the_users_own_arguments_is_replaced() -> None:
    arguments = (
        "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 14336 "
        "--swiglu --seq-length 4096 --max-position-embeddings 4096 --vocab-size 128256"
    )
    trainer = {**SPACE["trainer"], "args": arguments.split()}
    own = load_space({k: v for k, v in {**SPACE, "trainer": trainer}.items() if k != "model"})
    config = {"num_nodes": 1, "tp": 2, "pp": 2, "mbs": 1, "gas": 8, "zero_stage": 1}
    argv = shallower(own).command({**config, "recompute": "none"}, "trial")
    assert argv.count("--num-layers") == 1 and argv[argv.index("--num-layers") + 1] == "4"


def test_constraints_on_the_batch_and_the_nodes_are_no_probes() -> None:
    texts = [each.text for each in shallower(space()).constraints]
    assert "tp * pp <= 32" in texts and not any("global_batch_size" in each for each in texts)


def test_layers_of_each_kind_are_kept() -> None:
    shallow = shallower(space(model="deepseek_v3", parameters={**SPACE["parameters"], "ep": [8]}))
    assert shallow.model is not None and shallow.program.reads is not None
    assert (shallow.model.num_layers, shallow.facts is not None) == (4, True)
    config = {"num_nodes": 1, "tp": 1, "pp": 1, "mbs": 1, "gas": 8, "zero_stage": 1, "ep": 8}
    argv = shallow.command({**config, "recompute": "none"}, "trial")
    assert argv[argv.index("--moe-layer-freq") + 1] == "([0]*1+[1]*3)"


SHALLOW = {**load_space("tiny_cpu").model.model_dump(exclude_none=True), "num_layers": 4}  # type: ignore[union-attr]
UNPROBED: list[tuple[dict[str, Any], str]] = [
    ({"trainer": {"command": ["python", "train.py", "{tp}"]}}, "write {num_layers} where"),
    ({"model": SHALLOW, "trainer": {"command": ["x", "{num_layers}"]}}, "is its own probe"),
]


@pytest.mark.parametrize(("changes", "words"), UNPROBED)
def test_a_space_that_cannot_be_probed_says_why(changes: dict[str, Any], words: str) -> None:
    assert wanted(space(**changes), 8) is None, "nobody asked for probes"
    assert wanted(space(**changes, budget={"probes": "auto"}), 8) is None
    with pytest.raises(ProbeError, match=words):
        wanted(space(**changes, budget={"probes": 2}), 8)


def test_a_search_that_asks_for_probes_and_cannot_have_them_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "version: 1\ncluster: {name: c, gpus_per_node: 1, memory_gib: 1, peak_fp32_tflops: 1}\n"
        "trainer: {command: [echo, '{mbs}']}\nparameters: {mbs: [1, 2]}\n"
        "objective: {maximize: speed}\nbudget: {trials: 1, probes: 3}\n"
    )
    assert main(["search", str(file), "--launcher", "local", "--run-dir", str(tmp_path / "r")]) == 2
    assert f"{file}: probes need a model" in capsys.readouterr().err


def test_a_plan_is_cheaper_than_a_trial_and_differs_in_what_it_asks() -> None:
    found = plan(space(), 4, 4)
    assert len({tuple(config.items()) for config in found.configs}) == 4
    assert found.node_s < found.trial_node_s
    pricing = Pricing(found.space)
    needed = pricing.model.predict(pricing.jobs_of(found.configs)).peak_bytes
    assert needed.max() <= 0.5 * pricing.model.memory_limit_bytes, "no failure is risked"
    assert max(found.space.num_nodes(config) for config in found.configs) <= 2
    asked = [{config[name] for config in found.configs} for name in ("tp", "mbs", "recompute")]
    assert any(len(values) > 1 for values in asked), "all the same degrees"


def test_a_search_of_one_node_has_none_by_itself() -> None:
    assert wanted(space(budget={"probes": "auto"}), 1) is None


def test_a_search_learns_from_its_probes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On machines that are not as the cost model has them, the first trial is foretold better."""
    errors = dict.fromkeys((0, 4), 0.0)
    for seed, probes in product(range(3), errors):
        own, run = tmp_path / f"{probes}.yaml", tmp_path / f"{seed}-{probes}"
        own.write_text(space(budget={"trials": 1, "probes": probes}).frozen())
        hidden = f"nodes=4,model_error=1,noise=0,seed={seed}"
        simulated = ["--launcher", "simulate", "--simulate", hidden, "--no-report"]
        assert main(["search", str(own), *simulated, "--run-dir", str(run)]) == 0
        trial = read_run(run).trials[1]
        assert trial.objective is not None
        errors[probes] += abs(float(np.log(trial.objective / trial.expected["objective"])))
        assert RunFolder(run).probes.started == bool(probes)
    assert errors[4] < 0.5 * errors[0]
    printed = capsys.readouterr().out
    assert "probes: 4 probes of 4 layers" in printed and "learned: a trial takes" in printed
    pricing = Pricing.of_run(RunFolder(run))
    assert pricing is not None and pricing.probes is not None
    assert pricing.calibrated([]).log_sd < pricing.model.log_sd


def test_probes_are_run_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, run = tmp_path / "own.yaml", tmp_path / "run"
    own.write_text(space().frozen())
    simulated = ["--launcher", "simulate", "--simulate", "nodes=4", "--run-dir", str(run)]
    assert main(["probe", str(own), *simulated, "--number", "2"]) == 0
    assert len(read_run(RunFolder(run).probes.path).trials) == 2
    assert main(["probe", str(own), *simulated, "--number", "2"]) == 0
    assert len(read_run(RunFolder(run).probes.path).trials) == 2
    assert main(["search", str(own), *simulated, "--trials", "1", "--no-report"]) == 0
    probes = read_run(RunFolder(run).probes.path)
    left = Budget(node_hours=1.0, wall_time_s=1e6).after(probes)
    assert left.node_hours == pytest.approx(1 - probes.node_hours) and probes.node_hours > 0
    assert left.wall_time_s is not None and left.wall_time_s < 1e6
    capsys.readouterr()
    assert main(["probe", str(own), *simulated]) == 0
    assert "has trials already" in capsys.readouterr().out
    assert main(["status", str(run)]) == 0
    assert "probes      2 of 2 ran" in capsys.readouterr().out
    assert "What the probes told" in write_report(run).read_text()


def test_every_value_without_a_price_is_probed_at_the_same_degrees() -> None:
    kernels = {**SPACE["parameters"], "attention_kernel": ["eager", "flash", "fused"]}
    trainer = {"command": ["train", "--layers", "{num_layers}", "{attention_kernel}"]}
    found = plan(space(parameters=kernels, trainer=trainer), 2, 4)
    first, second, *others = [dict(config) for config in found.configs]
    assert first.pop("attention_kernel") == second["attention_kernel"] == "eager"
    assert [config.pop("attention_kernel") for config in others] == ["flash", "fused"]
    assert all(config == first for config in others)
    by_itself = wanted(space(parameters=kernels, trainer=trainer, budget={"probes": "auto"}), 8)
    assert by_itself is not None and len(by_itself.configs) == 3, "one, and each other value"
