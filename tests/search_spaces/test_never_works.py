"""Spaces whose every trial would fail are refused when they are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis import MissingMetricError
from search_spaces import SearchSpace, SpaceError
from search_spaces.cluster import Cluster
from search_spaces.objectives import keys_found
from slurm import Kind, Outcome
from tests.support.objectives import objective_values
from workflows.search.throughput import Job, completed
from workflows.search.trials import checked_outcome

Load = Callable[[str], SearchSpace]

KNOWN = """\
version: 1
model: llama_8b
cluster: dgx_h100
trainer: {adapter: megatron-lm, entry: pretrain_gpt.py}
parameters: {tp: [1, 2], mbs: [1, 2], global_batch_size: 64}
objective: {maximize: OBJECTIVE}
"""
BUILTIN = """\
version: 1
model: MODEL
cluster: dgx_h100
trainer: {builtin: {data: x, SETTING}}
parameters: {tp: [1, 2]}
objective: {maximize: tflops_per_gpu}
"""
WINDOWS = "{num_layers: 2, hidden_size: 8, num_heads: 2, vocab_size: 8, seq_length: 8, WHICH}"
OWN = """\
version: 1
trainer: {command: [python, train.py, "{mbs}"], result: {patterns: {val_loss: 'loss (.*)'}}}
parameters: {num_nodes: 2, mbs: [1, 2]}
objective: {minimize: OBJECTIVE}
"""


@pytest.mark.parametrize(
    ("text", "objective"),
    [
        (KNOWN, "cost_usd"),
        (KNOWN, "joules_per_token"),
        (KNOWN, "tokens_per_second / num_nodes"),
        (OWN, "tokens_per_joule"),
        (OWN.replace("val_loss", "step_time_s"), "energy_joules"),
    ],
)
def test_an_objective_that_no_result_has_is_refused(load: Load, text: str, objective: str) -> None:
    with pytest.raises(SpaceError, match=r"objective.m\w+imize': found .*accepted"):
        load(text.replace("OBJECTIVE", objective))


@pytest.mark.parametrize(
    "objective", ["tokens_per_second", "loss", "step_time_s.median", "num_nodes",
                  "node_seconds_per_token", "peak_memory_bytes"]
)  # fmt: skip
def test_an_objective_of_the_log_or_that_follows_from_it_is_taken(
    load: Load, objective: str
) -> None:
    assert load(KNOWN.replace("OBJECTIVE", objective)).objective.key == objective


def test_tokens_counted_to_the_end_of_a_run_are_a_rate_without_a_model(load: Load) -> None:
    adapter = "trainer: {adapter: litgpt, args: checkpoints/tiny --data Alpaca}"
    text = KNOWN.replace("model: llama_8b\ncluster: dgx_h100\n", "").replace("tp: [1, 2], ", "")
    text = text.replace("trainer: {adapter: megatron-lm, entry: pretrain_gpt.py}", adapter)
    assert load(text.replace("OBJECTIVE", "tokens_per_second"))


def test_a_script_that_states_results_may_have_any_objective(tmp_path: Path, load: Load) -> None:
    script = tmp_path / "pretrain_gpt.py"
    script.write_text("print('step')\n")
    with pytest.raises(SpaceError, match="cost_usd"):
        load(KNOWN.replace("OBJECTIVE", "cost_usd"))
    script.write_text("print('MESHTUNE_RESULT', json.dumps(result))\n")
    assert load(KNOWN.replace("OBJECTIVE", "cost_usd")).objective.key == "cost_usd"


def test_energy_of_a_log_is_of_all_gpus_and_needs_the_option_that_prints_it(load: Load) -> None:
    text = KNOWN.replace("OBJECTIVE", "joules_per_token").replace("maximize", "minimize")
    with pytest.raises(SpaceError, match="found 'joules_per_token', which neither"):
        load(text)
    space = load(text.replace("entry: pretrain_gpt.py", "args: --log-energy"))
    config = {"tp": 2, "mbs": 2, "gas": 8}
    result = {"step_time_s": {"median": 2.0}, "joules_per_step_per_gpu": 1000.0}
    outcome = checked_outcome(space, Outcome(Kind.OK, result=result, elapsed_s=99.0), config)
    told, steps = outcome.result or {}, space.trial.measured_steps
    assert told["energy_joules"] == 8 * 1000.0 * steps
    assert told["joules_per_token"] == pytest.approx(8000 / (64 * 8192))


def test_money_of_a_trainer_that_states_its_results_is_its_own_or_needs_a_price(
    tmp_path: Path, load: Load
) -> None:
    (tmp_path / "pretrain_gpt.py").write_text("print('MESHTUNE_RESULT', json.dumps(result))\n")
    text = KNOWN.replace("maximize: OBJECTIVE", "minimize: cost")
    config, result = {"tp": 2, "mbs": 2, "gas": 8}, {"loss": 1.0}
    facts = Cluster.named("dgx_h100").model_dump(exclude_defaults=True)
    for price, lacks in (
        ("price_per_node_hour", "tokens_per_second"),
        ("price_per_kwh", "energy_joules"),
    ):
        cluster = f"cluster: {json.dumps(facts | {price: 2})}"
        space = load(text.replace("cluster: dgx_h100", cluster))
        with pytest.raises(MissingMetricError, match=f"'{lacks}', from which 'cost' follows"):
            objective_values(space, config, result)
    whole = {"tokens_per_second": 9.0, "energy_joules": 8.0, "step_time_s": {"median": 2.0}}
    with pytest.raises(MissingMetricError, match="no number 'cost'"):
        objective_values(load(text), config, whole)
    assert objective_values(load(text), config, whole | {"cost": 7.0}) == {"cost": 7.0}


def test_what_follows_is_what_the_search_completes(load: Load) -> None:
    space = load(KNOWN.replace("OBJECTIVE", "loss"))
    assert space.model is not None
    job = Job(space.model, 64.0, 16, 4.0)
    for key in ("step_time_s.median", "steps_per_second", "samples_per_second", "loss"):
        result = {"step_time_s": {"median": 2.0}} if "." in key else {key: 2.0}
        flat = {f"{k}.median" if isinstance(v, dict) else k for k, v in
                completed(job, result).items()}  # fmt: skip
        spec = space.trainer.model_copy(update={"command": ["true"]})
        found = keys_found(spec, [key], {"global_batch_size"}, True)
        assert found is not None
        derived = {"num_nodes", "node_seconds_per_token", "cost"}
        assert flat == found - derived


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        ("[torchrun, --standalone, --nproc-per-node=2, train.py]", "torchrun"),
        ("[python, -m, torch.distributed.run, train.py]", "torch.distributed.run"),
        ("[env, A=1, /usr/bin/mpirun, python, train.py]", "mpirun"),
        ("[accelerate, launch, train.py]", "accelerate launch"),
        ("[deepspeed, train.py, --deepspeed]", "deepspeed"),
        ("[bash, -c, 'cd /a && torchrun train.py']", "torchrun"),
    ],
)
def test_a_launcher_inside_the_command_of_every_rank_is_refused(
    load: Load, command: str, launcher: str
) -> None:
    text = OWN.replace("OBJECTIVE", "val_loss")
    text = text.replace('[python, train.py, "{mbs}"]', command)
    with pytest.raises(SpaceError, match=f"trainer.command': found {launcher}, .*4 on each node"):
        load(text + "trial: {ranks_per_node: 4}\n")
    if "--standalone" in command:
        with pytest.raises(SpaceError, match="on each of 2 nodes"):
            load(text)
    else:
        load(text)  # one process per node: the launcher starts the others


@pytest.mark.parametrize(
    "command", ["[python, train.py, --launcher, torchrun]", "[python, train.py, torchrun]",
                "[python, -m, train, deepspeed]", "[bash, -c, 'python train.py torchrunner']"]
)  # fmt: skip
def test_a_trainers_own_arguments_are_no_launcher(load: Load, command: str) -> None:
    text = OWN.replace("OBJECTIVE", "val_loss") + "trial: {ranks_per_node: 4}\n"
    load(text.replace('[python, train.py, "{mbs}"]', command))


@pytest.mark.parametrize(
    ("model", "setting", "words"),
    [
        (WINDOWS.replace("WHICH", "windowed_layers: 2, window_size: 4"), "documents: {}",
         "the mask of a window does not separate them"),
        ("tiny", "moe_aux_loss_coeff: 0.1", "without experts: set the model's num_experts"),
        ("tiny_moe", "moe_aux_loss_coeff: 0.1, goldfish: {}", "left out of the loss"),
        (WINDOWS.replace("WHICH", "qkv_bias: true"), "save: there, last_save_in_hf: true",
         "Hugging Face weights are those of"),
    ],
)  # fmt: skip
def test_settings_that_the_trainer_refuses_in_every_layout_are_refused(
    load: Load, model: str, setting: str, words: str
) -> None:
    text = BUILTIN.replace("MODEL", model)
    assert load(text.replace("SETTING", "seed: 1")).model is not None
    with pytest.raises(SpaceError, match=f"key 'trainer.builtin': .*{words}"):
        load(text.replace("SETTING", setting))
