"""Habits that a space or a launch line states are certain, and reach the cost model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from search_spaces import SearchSpace, SpaceError, load_space
from search_spaces.known import framework_named

Load = Callable[[str], SearchSpace]
SPACE = """\
version: 1
cluster: dgx_h100
model: llama_8b
trainer:
  {trainer}
parameters: {{num_nodes: 1, tp: [1, 2], mbs: [1, 2], gas: 1}}
objective: {{maximize: tokens_per_second}}
"""


def space_of(load: Load, *lines: str) -> SearchSpace:
    return load(SPACE.format(trainer="\n  ".join(lines)))


def stated(space: SearchSpace) -> dict[str, Any]:
    habits = space.program.habits
    return {name: getattr(habits, name) for name in habits.stated}


def test_a_space_states_habits_beside_those_of_a_record(load: Load, tmp_path: Path) -> None:
    said = (
        "{base: megatron-lm, gradient_bytes: 2, flash_attention: true, step_gradient_bytes: [0, 6]}"
    )
    space = space_of(load, "command: [python, train.py, '{tp}', '{mbs}']", f"framework: {said}")
    own = {"gradient_bytes": 2, "flash_attention": True, "step_gradient_bytes": (0, 6)}
    assert stated(space) == own
    record = framework_named("megatron-lm")
    assert space.program.habits == record.with_habits(stated=frozenset(own), **own)
    (tmp_path / "frozen.yaml").write_text(space.frozen())
    again = load_space(tmp_path / "frozen.yaml")
    assert again.fingerprint == space.fingerprint and stated(again) == own


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("{base: fsdp, gradient_byte: 2}", r"space\.yaml:5:\d+: .*gradient_byte.*gradient_bytes"),
        (
            "{base: fsdp, gradient_bytes: two}",
            r"space\.yaml:5:\d+: .*found 'two', accepted a number",
        ),
        ("{base: fsdp, moment_bytes: -2}", r"space\.yaml:5:\d+: .*found -2, accepted 0.0 or more"),
        ("{base: fsdp, split: odd}", r"space\.yaml:5:\d+: .*found 'odd', accepted .*last_fewer"),
        ("{gradient_bytes: 2}", r"space\.yaml:5:\d+: .*'base' is missing"),
    ],
)
def test_a_wrong_habit_is_named_with_line_key_and_remedy(load: Load, said: str, named: str) -> None:
    with pytest.raises(SpaceError, match=named):
        space_of(load, f"framework: {said}", "command: [python, train.py]")


ADAPTERS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    (
        "megatron-lm",
        "--bf16 --use-precision-aware-optimizer --main-grads-dtype bf16 --exp-avg-dtype bf16 "
        "--attention-backend unfused",
        {},
        {"gradient_bytes": 2, "reduce_bytes": 2, "master_bytes": 2, "moment_bytes": 3,
         "flash_attention": False},
    ),
    (
        "megatron-lm",
        "--bf16 --use-flash-attn",
        {},
        {"gradient_bytes": 4, "reduce_bytes": 4, "master_bytes": 4, "moment_bytes": 4,
         "flash_attention": True},
    ),
    ("megatron-lm", "--bf16 --grad-reduce-in-bf16 --hidden-dropout 0", {},
     {"gradient_bytes": 2, "reduce_bytes": 2, "master_bytes": 4, "moment_bytes": 4,
      "masked_dropout": False}),
    ("megatron-deepspeed", "--bf16 --use-flash-attn-v2", {},
     {"flash_attention": True, "optimizer_always_sharded": True, "extra_gradient_bytes": (4, 0)}),
    ("megatron-deepspeed", "--fp16", {},
     {"flash_attention": False, "optimizer_always_sharded": False,
      "extra_gradient_bytes": (0, 0), "step_gradient_bytes": (4, 6)}),
    ("deepspeed", "", {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"},
                       "communication_data_type": "fp32",
                       "zero_optimization": {"stage3_max_live_parameters": 3e8,
                                             "reduce_bucket_size": 2e8}},
     {"optimizer_always_sharded": True, "extra_gradient_bytes": (4, 4), "reduce_bytes": 4,
      "live_parameters": 3e8, "reduced_apart": 2e8}),
    ("deepspeed", "", {"zero_optimization": {"reduce_bucket_size": "auto"}}, {"reduced_apart": 1}),
    ("transformers", "--attn_implementation eager --use_liger_kernel true", {},
     {"flash_attention": False, "logits_bytes": 0, "logit_copies": 0, "autocast_layers": False}),
    ("transformers", "--attn_implementation sdpa", {"zero_optimization": {"stage": 3}},
     {"flash_attention": True}),
    ("torchtitan", "--training.mixed_precision_reduce bfloat16", {}, {"reduce_bytes": 2}),
    ("torchtitan", "--module llama3 --config llama3_8b", {}, {"logits_bytes": 1.5}),
    ("nanotron", "", {"optimizer": {"accumulate_grad_in_fp32": False}},
     {"gradient_bytes": 2, "master_bytes": 0, "moment_bytes": 2}),
    ("neox", "", {"precision": "bfloat16", "data_types": {"grad_accum_dtype": "fp32"}},
     {"flash_attention": False, "optimizer_always_sharded": True,
      "extra_gradient_bytes": (4, 4)}),
    ("neox", "", {"precision": "fp16", "attention-config": [[["flash"], 32]]},
     {"optimizer_always_sharded": False, "extra_gradient_bytes": (0, 0),
      "step_gradient_bytes": (4, 6)}),
    ("neox", "", {"fp16": {"enabled": True, "loss_scale": 0}},
     {"flash_attention": False, "optimizer_always_sharded": False,
      "extra_gradient_bytes": (0, 0), "step_gradient_bytes": (4, 6)}),
    ("accelerate", "", {}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("adapter", "args", "config", "expected"), ADAPTERS)
def test_launch_lines_and_files_state_habits(
    load: Load,
    tmp_path: Path,
    adapter: str,
    args: str,
    config: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    lines = [f"adapter: {adapter}", "entry: train.py"]
    if adapter == "torchtitan":
        lines.pop()
    if args:
        lines.append(f"args: {args}")
    if config:
        (tmp_path / "own.json").write_text(json.dumps(config))
        lines.append("config: own.json")
    space = space_of(load, *lines)
    assert stated(space) == expected
    mine = space_of(load, *lines, "framework: {base: axonn, flash_attention: true}")
    assert stated(mine) == {**expected, "flash_attention": True}
    assert mine.program.habits.name == "axonn"


def test_an_option_with_another_value_says_nothing(load: Load) -> None:
    line = "args: --attention-backend auto --transformer-impl transformer_engine"
    assert "flash_attention" not in stated(space_of(load, "adapter: megatron-lm", line))


def test_the_environment_states_how_the_allocator_grows(load: Load) -> None:
    own = ["adapter: accelerate", "entry: train.py"]
    env = "env: {PYTORCH_CUDA_ALLOC_CONF: 'max_split_size_mb:512,expandable_segments:True'}"
    assert stated(space_of(load, *own, env)) == {"expandable_segments": True}
    off = "env: {PYTORCH_CUDA_ALLOC_CONF: 'expandable_segments:False'}"
    assert stated(space_of(load, *own, off)) == {}
