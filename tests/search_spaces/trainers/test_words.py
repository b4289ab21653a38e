"""Words of a space, such as a precision, for which Megatron-LM has options, and others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from search_spaces import SearchSpace, SpaceError

Load = Callable[[str], SearchSpace]
SPACE = """\
version: 1
cluster: dgx_h100
model: {{num_layers: 16, hidden_size: 256, num_heads: 8, vocab_size: 1000, seq_length: 128}}
trainer: {{adapter: megatron-lm, args: [{args}]}}
parameters: {{pp: [1, 8], mbs: 1, gas: 64, {more}}}
objective: {{maximize: tokens_per_second}}
"""


@pytest.mark.parametrize(
    ("stated", "precision", "written"),
    [
        ("--bf16 --fp8-format hybrid", "fp8", "--bf16 --fp8-format hybrid"),
        ("--fp8-format e4m3 --bf16", "fp8", "--bf16 --fp8-format e4m3"),
        ("--fp16 --fp8-format hybrid", "fp8", "--fp16 --fp8-format hybrid"),
        ("--bf16", "bf16", "--bf16"),
        ("--fp16", "fp16", "--fp16"),
    ],
)
def test_products_in_fp8_are_no_products_in_bf16(
    load: Load, stated: str, precision: str, written: str
) -> None:
    args = ", ".join(stated.split())
    space = load(SPACE.format(args=args, more="tp: 1"))
    assert space.parameters["precision"].values == (precision,)
    config = {"pp": 1, "mbs": 1, "gas": 64, "tp": 1, "precision": precision}
    command = " ".join(space.command(config, "/t"))
    assert command.endswith(f" {written}")
    assert command.count("--bf16") + command.count("--fp16") == 1


def test_the_users_own_format_of_fp8_is_kept_in_trials_in_fp8(load: Load) -> None:
    space = load(SPACE.format(args="--bf16, --fp8-format, e4m3", more="precision: [bf16, fp8]"))
    config = {"pp": 1, "mbs": 1, "gas": 64}
    fp8, bf16 = (" ".join(space.command({**config, "precision": p}, "")) for p in ("fp8", "bf16"))
    assert "--fp8-format e4m3" in fp8 and fp8.count("--fp8-format") == fp8.count("--bf16") == 1
    assert "--fp8-format" not in bf16 and bf16.count("--bf16") == 1


@pytest.mark.parametrize("precision", ["fp32", "fp8"])
def test_a_word_without_an_option_may_be_the_trainers_default(load: Load, precision: str) -> None:
    space = load(SPACE.format(args="", more=f"tp: 1, precision: {precision}"))
    assert space.parameters["precision"].values == (precision,)
    with pytest.raises(SpaceError, match="found 'int4', accepted by megatron-lm bf16, fp16, fp32"):
        load(SPACE.format(args="", more="tp: 1, precision: [bf16, int4]"))


@pytest.mark.parametrize(
    ("trainer", "more"),
    [
        ('args: [--my-rec, "{recompute}"]', "recompute: [full, mine]"),
        ("args: [{when: recompute == 'mine', args: [--mine]}]", "recompute: [full, mine]"),
        ('env: {PREC: "{precision}"}', "precision: [bf16, int4]"),
        ("files: {a.json: {content: {}, set: {p: '{precision}'}}}", "precision: [bf16, int4]"),
        ("env: {EVERY: '{every}'}", "every: [1, 2], recompute: [full, 'by block']"),
    ],
)
def test_words_that_users_pass_on_themselves_are_accepted(
    load: Load, trainer: str, more: str
) -> None:
    text = SPACE.format(args="", more=f"tp: 1, {more}")
    if "every" in more:
        text += "conditions: {every: recompute == 'by block'}\n"
    space = load(text.replace("args: []", trainer))
    assert {"mine", "int4", "by block"} & {w for p in space.parameters.values() for w in p.values}
    told = "recompute: [full, ful], precision: [bf16]"
    with pytest.raises(SpaceError, match="found 'ful', accepted by megatron-lm full, none, selec"):
        load(SPACE.format(args="", more=f"tp: 1, {told}"))


@pytest.mark.parametrize("adapter", ["transformers", "trl"])
@pytest.mark.parametrize(
    ("fsdp", "stage", "offloads"),
    [
        ("full_shard auto_wrap offload", 3, True),
        ("full_shard offload auto_wrap", 3, True),
        ("shard_grad_op auto_wrap offload", 2, True),
        ("full_shard auto_wrap", 3, False),
        ("full_shard", 3, False),
        ("shard_grad_op", 2, False),
    ],
)
def test_words_of_fsdp_state_the_stage_and_offloading(
    load: Load, adapter: str, fsdp: str, stage: int, offloads: bool
) -> None:
    space = load(
        "version: 1\ncluster: dgx_h100\nmodel: llama_8b\n"
        f"trainer: {{adapter: {adapter}, entry: train.py, args: [--fsdp, {fsdp}]}}\n"
        "parameters: {num_nodes: 2, mbs: [1, 2], gas: 1}\n"
        "objective: {maximize: samples_per_second}\n"
    )
    assert space.parameters["zero_stage"].values == (stage,)
    assert ("offload_parameters" in space.parameters) is offloads
    config = {name: each.values[0] for name, each in space.parameters.items()}
    assert space.first_violation(config) is None
    command = space.command(config, "/t")
    last = len(command) - 1 - command[::-1].index("--fsdp")
    words = "full_shard" if stage == 3 else "shard_grad_op"
    assert command[last + 1] == f"{words} auto_wrap{' offload' if offloads else ''}"


def test_a_file_of_another_format_than_the_trainers_is_told(load: Load, tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text("learning_rate: 1.0e-5\n")
    with pytest.raises(SpaceError, match=r"found sft.yaml, accepted a \*.json file"):
        load(
            "version: 1\ncluster: dgx_h100\nmodel: llama_8b\n"
            "trainer: {adapter: trl, config: sft.yaml}\n"
            "parameters: {mbs: [1, 2], gas: 1}\nobjective: {maximize: samples_per_second}\n"
        )


@pytest.mark.parametrize(
    ("strategy", "stage"),
    [
        ("--trainer.strategy, FSDPStrategy, --trainer.strategy.sharding_strategy, FULL_SHARD", 3),
        (
            "--trainer.strategy, FSDPStrategy, --trainer.strategy.sharding_strategy, SHARD_GRAD_OP",
            2,
        ),
        ("--trainer.strategy, fsdp", 3),
        ("--trainer.strategy, ddp", 0),
    ],
)
def test_lightnings_strategy_states_the_stage_and_stays(
    load: Load, strategy: str, stage: int
) -> None:
    space = load(
        "version: 1\ncluster: dgx_h100\nmodel: llama_8b\n"
        f"trainer: {{adapter: lightning, entry: train.py, args: [fit, {strategy}]}}\n"
        "parameters: {mbs: [1, 2], gas: 1}\nobjective: {maximize: samples_per_second}\n"
    )
    assert space.parameters["zero_stage"].values == (stage,)
    config = {name: each.values[0] for name, each in space.parameters.items()}
    assert {*strategy.split(", ")} <= {*space.command(config, "/t")}
