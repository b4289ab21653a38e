"""What trainers refuse at their start is not proposed, and what stands in a trial's way is left."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from search_spaces import SearchSpace

Load = Callable[[str], SearchSpace]
MEGATRON = """\
version: 1
model: {model}
cluster: dgx_h100
trainer: {{adapter: megatron-lm, args: {args}}}
parameters: {{num_nodes: 2, mbs: 1, gas: 4, {more}}}
objective: {{maximize: tokens_per_second}}
"""
FINE_TUNING = """\
version: 1
cluster: dgx_h100
trainer: {{{trainer}}}
parameters: {{mbs: [1, 2], gas: 4, {more}}}
objective: {{minimize: step_time_s.median}}
"""
PLAIN = {"num_nodes": 2, "mbs": 1, "gas": 4}
FSDP = ["--use-megatron-fsdp", "--ckpt-format", "fsdp_dtensor", "--init-model-with-meta-device",
        "--fp8-param-gather", "--overlap-grad-reduce", "--overlap-param-gather"]  # fmt: skip


def megatron(load: Load, args: list[str], more: str, model: str = "llama_8b") -> SearchSpace:
    return load(MEGATRON.format(model=model, args=json.dumps(args), more=more))


@pytest.mark.parametrize(
    "args",
    [  # examples/gpt3/train_gpt3_175b_distributed.sh of NVIDIA/Megatron-LM (d98e8a6)
        ["--step-batch-size-schedule", "0:16 2.4B:320 4.8B:624 7.2B:928 9.6B:1232 12B:1536"],
        ["--rampup-batch-size", "16", "8", "300000"],
        # examples/megatron_fsdp/train_llama3_8b_fsdp_h100_fp8.sh: a snapshot at each logged step
        ["--record-memory-history"],
    ],
)
def test_megatrons_trials_have_the_whole_batch_and_no_snapshots(
    load: Load, args: list[str]
) -> None:
    """arguments.py refuses --step-batch-size-schedule beside --global-batch-size."""
    space = megatron(load, [*args, "--bf16"], "tp: [1]")
    command = space.command({**PLAIN, "tp": 1, "precision": "bf16"}, "/t")
    assert args[0] not in command and args[-1][-9:] not in " ".join(command)
    assert "--bf16" in command


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_megatrons_own_fsdp_gets_what_its_sharding_takes(load: Load, zero_stage: int) -> None:
    """arguments.py refuses a meta device, and a gather in 8 bits, where nothing is sharded."""
    more = f"precision: fp8, zero_stage: [0, 1, 2, 3], overlap_grad_reduce: {[True]}".lower()
    space = megatron(load, FSDP, more)
    config = {**PLAIN, "zero_stage": zero_stage, "precision": "fp8", "overlap_grad_reduce": True}
    config |= {"overlap_param_gather": True} if zero_stage else {}
    assert space.first_violation(config) is None
    command = space.command(config, "/t")
    for flag in ("--init-model-with-meta-device", "--fp8-param-gather", "--overlap-param-gather"):
        assert command.count(flag) == (1 if zero_stage else 0)
    torchs = megatron(load, FSDP[5:], "zero_stage: [1, 3]")
    config = {**PLAIN, "overlap_grad_reduce": True, "overlap_param_gather": True}
    for stage, flags in ((1, 1), (3, 0)):  # torch's FSDP refuses it
        assert torchs.command({**config, "zero_stage": stage}, "/t").count(FSDP[6]) == flags


@pytest.mark.parametrize(
    ("args", "more", "fits"),
    [
        (FSDP[:3], {"zero_stage": 2}, True),
        (FSDP[:3], {"zero_stage": 3, "ep": 8}, True),  # as its example of DeepSeek-V3 has it
        (FSDP[:3], {"zero_stage": 2, "pp": 2}, False),
        ([], {"zero_stage": 2}, False),
        ([], {"zero_stage": 3, "ep": 8}, False),  # torch's FSDP refuses it
    ],
)
def test_megatrons_own_fsdp_shards_what_torchs_does_not(
    load: Load, args: list[str], more: dict[str, int], fits: bool
) -> None:
    space = megatron(
        load, args, "zero_stage: [0, 2, 3], ep: [1, 8], pp: [1, 2], tp: [1]", "mixtral_8x7b"
    )
    config = {**PLAIN, "ep": 1, "pp": 1, "tp": 1, **more}
    assert (space.first_violation(config) is None) is fits, space.first_violation(config)


@pytest.mark.parametrize(
    ("stage", "strategy"),
    [(0, "no_shard"), (1, "optim"), (2, "optim_grads"), (3, "optim_grads_params")],
)
def test_bridges_own_fsdp_shards_what_is_searched(load: Load, stage: int, strategy: str) -> None:
    """Without it a recipe's strategy would stay, whatever stage a trial is said to have."""
    args = ["--recipe", "llama3_8b_pretrain", "ddp.use_megatron_fsdp=true"]
    text = MEGATRON.replace("megatron-lm", "megatron-bridge, entry: run_recipe.py")
    more = "zero_stage: [0, 1, 2, 3], pp: [1, 2], tp: [1]"
    space = load(text.format(model="llama_8b", args=json.dumps(args), more=more))
    config = {**PLAIN, "zero_stage": stage, "pp": 1, "tp": 1}
    assert space.first_violation(config) is None
    command = space.command(config, "/t")
    assert f"ddp.data_parallel_sharding_strategy={strategy}" in command
    assert "ddp.use_megatron_fsdp=true" in command
    assert not any("use_distributed_optimizer" in word for word in command)
    assert (space.first_violation({**config, "pp": 2}) is None) is (stage < 2)
    plain = load(text.format(model="llama_8b", args=json.dumps(args[:2]), more=more))
    assert (plain.first_violation(config) is None) is (stage < 2)
    stated = plain.command({**config, "zero_stage": 1}, "/t")
    assert "ddp.use_distributed_optimizer=true" in [word.lower() for word in stated]


@pytest.mark.parametrize(("args", "differs"), [(FSDP[:1], True), ([], False)])
def test_megatrons_gather_is_searched_where_its_sharding_heeds_it(
    load: Load, args: list[str], differs: bool
) -> None:
    """Under torch's FSDP two trials of it would run the same command."""
    more = "zero_stage: [1, 3], overlap_grad_reduce: [true], overlap_param_gather: [false, true]"
    space = megatron(load, args, more)
    for stage, both in ((1, True), (3, differs)):
        base = {**PLAIN, "zero_stage": stage, "overlap_grad_reduce": True}
        found = [space.canonical({**base, "overlap_param_gather": on}) for on in (False, True)]
        assert (found[0] != found[1]) is both
        commands = {tuple(space.command(each, "/t")) for each in found}
        assert len(commands) == 1 + both


@pytest.mark.parametrize(("dispatcher", "fits"), [("", False), ("alltoall", True)])
def test_megatrons_experts_overlap_with_a_dispatcher_that_can(
    load: Load, dispatcher: str, fits: bool
) -> None:
    """transformer_config.py: supported with alltoall and flex; its default is allgather."""
    args = ["--moe-token-dispatcher-type", dispatcher] if dispatcher else []
    space = megatron(
        load, args, "ep: [8], tp: [1], moe_comm_overlap: [false, true]", "mixtral_8x7b"
    )
    config = {**PLAIN, "ep": 8, "tp": 1, "moe_comm_overlap": True}
    config |= {"moe_token_dispatcher": dispatcher} if dispatcher else {}
    refusal = space.first_violation(config)
    assert (refusal is None) is fits, refusal
    assert fits or "allgather" in str(refusal)


@pytest.mark.parametrize("name", ["transformers", "trl"])
def test_checkpointing_by_its_name_in_transformers_5_24_is_the_searchs(
    load: Load, name: str
) -> None:
    """Where both are given, training_args.py takes activation_checkpointing."""
    trainer = (
        f"adapter: {name}, entry: /x.py, args: [--activation_checkpointing, 'true', --seed, '1']"
    )
    space = load(FINE_TUNING.format(trainer=trainer, more="recompute: [none, full]"))
    for recompute in ("none", "full"):
        config = {"mbs": 1, "gas": 4, "recompute": recompute}
        command = " ".join(space.command(config, "/t"))
        assert "--activation_checkpointing" not in command and "--seed 1" in command
        told = re.search(r"--gradient_checkpointing(?: (true|false))?", command)
        assert (told is not None and told[1] != "false") is (recompute == "full")


def test_litgpt_gets_one_warm_up(load: Load) -> None:
    """args.py of litgpt 0.5.13 refuses both of them."""
    trainer = "adapter: litgpt, args: [ckpt, --train.lr_warmup_fraction, '0.1', --data, Alpaca]"
    space = load(FINE_TUNING.format(trainer=trainer, more="precision: [bf16]"))
    command = space.command({"mbs": 1, "gas": 4, "precision": "bf16", "tuning": "lora"}, "/t")
    assert "--train.lr_warmup_fraction" not in command
    assert command[command.index("--train.lr_warmup_steps") + 1] == "1"


@pytest.mark.parametrize("length", [None, 2048])
def test_torchtune_packs_sequences_of_a_known_length(
    load: Load, tmp_path: Path, length: int | None
) -> None:
    """datasets/_alpaca.py of torchtune asks for tokenizer.max_seq_len; its files have null."""
    own = {"tokenizer": {"max_seq_len": length}, "dataset": {"packed": False}}
    (tmp_path / "own.json").write_text(json.dumps(own))
    text = FINE_TUNING.format(
        trainer="adapter: torchtune, config: own.json", more="packing: [false, true]"
    )
    space = load(text)
    config: dict[str, Any] = {"mbs": 1, "gas": 4, "tuning": "lora", "packing": False}
    config |= {"max_length": length} if length else {}
    assert space.first_violation(config) is None
    assert (space.first_violation({**config, "packing": True}) is None) is bool(length)


@pytest.mark.parametrize("axis", ["tp", "cp"])
def test_accelerates_mesh_is_that_of_fsdp2(load: Load, axis: str) -> None:
    """parallelism_config.py: ParallelismConfig is only compatible with FSDP of version 2."""
    more = f"{axis}: [1, 2], zero_stage: [0, 3]"
    space = load(FINE_TUNING.format(trainer="adapter: accelerate, entry: /x.py", more=more))
    config = {"mbs": 1, "gas": 4, axis: 2, "zero_stage": 3}
    assert space.environment(config, "/t")["FSDP_VERSION"] == "2"
    assert space.first_violation(config) is None
    assert space.first_violation({**config, "zero_stage": 0}) is not None
    with_version = FINE_TUNING.format(
        trainer="adapter: accelerate, entry: /x.py", more=f"{more}, fsdp_version: [1, 2]"
    )
    assert load(with_version).first_violation({**config, "fsdp_version": 1}) is not None


def test_nanotron_has_one_rank_for_all_experts(load: Load, tmp_path: Path) -> None:
    """parallel/context.py reshapes TP*CP*DP*PP ranks into as many times ep."""
    (tmp_path / "own.yaml").write_text("parallelism: {dp: 1}\n")
    trainer = "adapter: nanotron, config: own.yaml"
    space = load(FINE_TUNING.format(trainer=trainer, more="ep: [1, 2]"))
    assert space.first_violation({"mbs": 1, "gas": 4, "ep": 1}) is None
    assert "ep == 1" in str(space.first_violation({"mbs": 1, "gas": 4, "ep": 2}))
