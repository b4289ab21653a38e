"""Exports: what each trainer's own parser reads, and what has no home in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from search_spaces import Export, SearchSpace

Load = Callable[[str], SearchSpace]

SPACE = """\
version: 1
model: llama_8b
cluster: {name: two, gpus_per_node: 2, memory_gib: 80, peak_bf16_tflops: 300}
trainer: {TRAINER}
parameters: {num_nodes: 4, tp: 2, pp: 2, mbs: 2, gas: 4, zero_stage: 3,
             recompute: [none, selective, full], compile: true}
objective: {maximize: tokens_per_second}
"""
ANY = 'command: [train, "{tp}{pp}{mbs}{gas}{zero_stage}{recompute}{compile}"]'
TITAN_3 = ["--module", "llama3", "--config", "llama3_8b"]


def exported(load: Load, to: str, trainer: str = ANY, *arguments: str, **more: Any) -> Export:
    space = load(SPACE.replace("TRAINER", trainer))
    config = {name: parameter.values[0] for name, parameter in space.parameters.items()}
    return Export.of(space, {**config, "recompute": "full", **more}, to, arguments)


def words(export: Export) -> list[str]:
    return [word for option in export.arguments for word in option]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_torchtitan_reads_what_is_exported_for_its_version(load: Load, recompute: str) -> None:
    old, new = "--activation_checkpoint.mode", f"activation-checkpoint:{recompute}"
    usual = words(exported(load, "torchtitan", recompute=recompute))
    assert old in usual and new not in usual
    told = words(exported(load, "torchtitan", ANY, *TITAN_3, recompute=recompute))
    assert old not in told and told[-1] == new
    own = f"adapter: torchtitan, args: {json.dumps(TITAN_3)}"
    assert words(exported(load, "torchtitan", own, recompute=recompute)) == told
    config = pytest.importorskip("torchtitan.config", reason="needs torchtitan")
    read = config.ConfigManager().parse_args([*TITAN_3, *told])
    assert read.parallelism.pipeline_parallel_degree == 2
    assert read.parallelism.num_pp_microbatches == 4


@pytest.mark.parametrize(
    ("to", "homeless"),
    [
        ("deepspeed", {"pp", "recompute", "compile"}),
        ("accelerate", {"pp", "mbs", "compile"}),
        ("megatron-lm", {"compile"}),
        ("lightning", {"tp", "pp", "mbs", "gas", "zero_stage", "recompute", "compile"}),
        ("torchtitan", set()),
    ],
)
def test_every_parameter_is_written_or_told(load: Load, to: str, homeless: set[str]) -> None:
    export = exported(load, to)
    assert {
        line.partition(":")[0] for line in export.unmapped if "model" not in line.split(":")[0]
    } == homeless
    assert sum("model (" in line for line in export.unmapped) == (to != "megatron-lm")


def test_a_degree_of_one_is_no_news(load: Load) -> None:
    space = load(SPACE.replace("TRAINER", ANY).replace("pp: 2", "pp: 1"))
    config = {name: parameter.values[0] for name, parameter in space.parameters.items()}
    assert not [each for each in Export.of(space, config, "deepspeed").unmapped if "pp" in each]


def test_deepspeeds_sizes_agree_on_any_number_of_ranks(load: Load) -> None:
    (file,) = exported(load, "deepspeed").files.values()
    written = json.loads(file)
    assert "train_batch_size" not in written  # it would be that of dp with a pipeline
    assert written["train_micro_batch_size_per_gpu"] == 2
    assert written["gradient_accumulation_steps"] == 4
    assert "fp16" not in written
    own = pytest.importorskip("deepspeed.runtime.config", reason="needs deepspeed")
    read = own.DeepSpeedConfig({**written, "train_batch_size": 8})  # of this one rank
    assert (read.zero_optimization_stage, read.gradient_accumulation_steps) == (3, 4)


@pytest.mark.parametrize("to", ["transformers", "trl"])
def test_hugging_faces_own_parser_reads_an_export(load: Load, to: str) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    options = [w for w in words(exported(load, to)) if not w.startswith(("--bf16", "--fp16"))]
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    (read,) = parser.parse_args_into_dataclasses([*options, "--output_dir", "o", "--use_cpu"])
    assert (read.per_device_train_batch_size, read.gradient_accumulation_steps) == (2, 4)
    assert read.gradient_checkpointing and read.fsdp and read.torch_compile


def test_what_a_version_would_be_told_is_said(load: Load) -> None:
    (line,) = (each for each in exported(load, "lightning").unmapped if each.startswith("gas"))
    assert line.endswith("where the command line has trainer: name your launch script with --args")
    told = exported(load, "lightning", ANY, "--trainer.accelerator", "gpu", "--data.batch_size=1")
    assert "--trainer.accumulate_grad_batches" in words(told)
    assert "--data.batch_size" in words(told) and "--model.batch_size" not in words(told)
