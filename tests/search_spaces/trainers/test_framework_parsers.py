"""What adapters write is read by the frameworks' own parsers, where these are installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from search_spaces import Export, SearchSpace
from search_spaces.known import LOG_FORMATS
from support.log_metrics import metrics_of

Load = Callable[[str], SearchSpace]
SPACE = """\
version: 1
cluster: {{name: two, gpus_per_node: 2, memory_gib: 80, peak_bf16_tflops: 900}}
{model}
trainer: {{{trainer}}}
parameters: {{num_nodes: [1, 2], mbs: [1, 2, 4], gas: [1, 4], {more}}}
objective: {{minimize: step_time_s.median}}
"""
SHARDED = "zero_stage: [0, 2, 3], precision: [fp32, bf16], recompute: [none, full]"
OFF = {"lora_rank": 8, "lora_targets": "linear"}  # without adapters
CONFIG = {"num_nodes": 2, "mbs": 4, "gas": 4, "zero_stage": 3, "precision": "bf16"}


def trial(
    load: Load, trainer: str, more: str = SHARDED, model: str = "", **config: Any
) -> tuple[SearchSpace, list[str], dict[str, str]]:
    """A space, and the options and files of one of its configurations."""
    space = load(SPACE.format(trainer=trainer, more=more, model=model))
    whole = {name: config.get(name, p.values[-1]) for name, p in space.parameters.items()}
    assert space.first_violation(whole) is None
    command = list(space.command(whole, "/t"))
    first = next((i for i, word in enumerate(command) if word.startswith("--")), len(command))
    return space, command[first:], dict(space.files(whole, "/t"))


def test_deepspeed_reads_its_file(load: Load, tmp_path: Path) -> None:
    config = pytest.importorskip("deepspeed.runtime.config", reason="needs deepspeed")
    own = {"train_batch_size": 64, "fp16": {"enabled": True}, "gradient_clipping": 1.0}
    (tmp_path / "ds.json").write_text(json.dumps(own))
    trainer = "adapter: deepspeed, entry: /x.py, config: ds.json"
    space, options, files = trial(load, trainer, "zero_stage: [1, 3], precision: [fp16, bf16]")
    assert "global_batch_size == 64" in space.constraints[0].text
    assert options == ["--deepspeed", "--deepspeed_config", "ds_config.json"]
    written = json.loads(files["ds_config.json"])
    assert written.pop("train_batch_size") == 64  # of the trial's four ranks; this one is alone
    read = config.DeepSpeedConfig(written)
    assert (read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps) == (4, 4)
    assert (read.zero_optimization_stage, read.gradient_clipping) == (3, 1.0)
    assert (read.bfloat16_config.enabled, read.float16_config.enabled) == (True, False)
    assert read.steps_per_print == 1
    assert written["log_level"] == "info"  # what is below, as DeepSpeed's own code says it
    timer = pytest.importorskip("deepspeed.utils.timer")
    lines: list[str] = []
    timing = SimpleNamespace(enabled=True, synchronized=False)
    speed = timer.ThroughputTimer(timing, 8, steps_per_output=1, logging_fn=lines.append)
    for _ in range(4):
        speed.start()
        speed.stop(global_step=True)
    text = "".join(f"[2026-08-22 10:00:00,000] [INFO] {line}\n" for line in lines)
    found = metrics_of(LOG_FORMATS["deepspeed"], [text, ""])
    assert found["samples_per_second"] > 0 and len(lines) == 2  # of four steps, after its warm-up


@pytest.mark.parametrize(("stage", "version"), [(2, 1), (3, 1), (3, 2)])
def test_accelerate_reads_its_environment(
    load: Load, monkeypatch: pytest.MonkeyPatch, stage: int, version: int
) -> None:
    more = f"{SHARDED}, fsdp_version: [1, 2]"
    space, _, _ = trial(load, "adapter: accelerate, entry: /x.py", more)
    config = CONFIG | {"zero_stage": stage, "recompute": "full", "fsdp_version": version}
    environment = space.environment(config, "/t")
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert environment["ACCELERATE_USE_FSDP"] == "true"
    plugin = accelerate.FullyShardedDataParallelPlugin()
    assert plugin.activation_checkpointing
    if version == 2:
        assert plugin.reshard_after_forward is (stage == 3)
    else:
        strategies = {2: "SHARD_GRAD_OP", 3: "FULL_SHARD"}
        assert plugin.sharding_strategy.name == strategies[stage]
    plain = space.environment(config | {"zero_stage": 0, "precision": "fp32"}, "/t")
    assert plain["ACCELERATE_USE_FSDP"] == "false"
    assert accelerate.utils.PrecisionType(plain["ACCELERATE_MIXED_PRECISION"]) == "no"
    assert plain["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "4"


@pytest.mark.parametrize("zero_stage", [0, 2, 3])
def test_transformers_reads_its_arguments(load: Load, zero_stage: int) -> None:
    trainer = "adapter: transformers, entry: /x.py"
    _, options, _ = trial(load, trainer, precision="fp32", zero_stage=zero_stage)
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    options += ["--use_cpu"]
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    (read,) = parser.parse_args_into_dataclasses(options)
    assert (read.per_device_train_batch_size, read.gradient_accumulation_steps) == (4, 4)
    assert (read.max_steps, read.logging_steps, read.gradient_checkpointing) == (7, 1, True)
    assert bool(read.fsdp) is (zero_stage > 0)


@pytest.mark.parametrize("tuning", ["full", "lora", "qlora"])
def test_trl_reads_its_arguments(load: Load, tuning: str) -> None:
    trainer = "adapter: trl, args: --model_name_or_path m --dataset_name d"
    more = "tuning: [full, lora, qlora], lora_rank: [8, 32], lora_targets: [linear, attention]"
    tuned = {"tuning": tuning} if tuning != "full" else {"tuning": tuning, **OFF}
    more = f"{SHARDED}, {more}, packing: [false, true]"
    _, options, _ = trial(load, trainer, more, precision="fp32", zero_stage=3, **tuned)
    pytest.importorskip("trl", reason="needs trl")
    from trl.scripts.sft import make_parser

    parsed = make_parser().parse_args_and_config([*options, "--use_cpu", "true"])
    read = {name: value for record in parsed for name, value in vars(record).items()}
    assert (read["per_device_train_batch_size"], read["gradient_accumulation_steps"]) == (4, 4)
    assert read["max_steps"] == 7 and read["packing"] and read["gradient_checkpointing"]
    assert read["include_num_input_tokens_seen"] in (True, "all", "true", "")
    assert bool(read["use_peft"]) is (tuning != "full")
    assert bool(read["load_in_4bit"]) is (tuning == "qlora")
    if tuning != "full":
        assert read["lora_r"] == 32
        assert read["lora_target_modules"] == ["q_proj", "k_proj", "v_proj", "o_proj"]


def test_transformers_writes_deepspeeds_file_where_there_is_one(load: Load, tmp_path: Path) -> None:
    own = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
    (tmp_path / "ds.json").write_text(json.dumps(own))
    trainer = "adapter: transformers, entry: /x.py, config: ds.json"
    _, options, files = trial(load, trainer)
    assert options[:2] == ["--deepspeed", "ds_config.json"]
    assert "--fsdp" not in options
    written = json.loads(files["ds_config.json"])
    assert written["zero_optimization"] == {"stage": 3}
    assert written["train_micro_batch_size_per_gpu"] == 4


@pytest.mark.parametrize("zero_stage", [0, 2])
def test_lightnings_command_line_reads_its_options(load: Load, zero_stage: int) -> None:
    own = "args: [--trainer.accelerator, cpu, --data.batch_size, '1']"
    trainer = f"adapter: lightning, entry: /x.py, {own}"
    more = "zero_stage: [0, 2, 3], precision: [fp32, bf16]"
    space, options, _ = trial(load, trainer, more, mbs=1, zero_stage=zero_stage)
    lightning = pytest.importorskip("lightning.pytorch", reason="needs lightning")
    pytest.importorskip("jsonargparse", reason="needs jsonargparse")
    from lightning.pytorch.cli import LightningArgumentParser

    parser = LightningArgumentParser()
    parser.add_argument("--data.batch_size", type=int)
    parser.add_lightning_class_args(lightning.Trainer, "trainer")
    read = parser.parse_args(options)
    assert (read.trainer.accumulate_grad_batches, read.trainer.max_steps) == (4, 7)
    assert (int(read.trainer.devices), read.trainer.num_nodes) == (2, 2)
    assert (read.trainer.precision, read.trainer.logger) == ("bf16-mixed", False)
    strategy = read.trainer.strategy
    assert strategy == "ddp" if zero_stage == 0 else "FSDPStrategy" in strategy.class_path
    assert read.data.batch_size == 1
    alone, _, _ = trial(load, "adapter: lightning, entry: /x.py", more)
    exported = Export.of(space, CONFIG | {"zero_stage": zero_stage}, "lightning").arguments
    read = parser.parse_args([word for option in exported for word in option])
    assert (read.trainer.accumulate_grad_batches, read.data.batch_size) == (4, 4)
    assert read.trainer.precision == "bf16-mixed"
    whole = CONFIG | {"zero_stage": zero_stage}
    assert list(alone.command(whole, "/t")) == ["python", "/x.py"]  # a script with its own options


@pytest.mark.parametrize("pp", [1, 2])
def test_torchtitan_reads_its_options(load: Load, pp: int) -> None:
    trainer = "adapter: torchtitan, args: [--module, llama3, --config, llama3_8b]"
    more = f"tp: [1, 2], pp: {pp}, {SHARDED}"
    _, options, _ = trial(load, trainer, more, "model: llama_8b", tp=1)
    config = pytest.importorskip("torchtitan.config", reason="needs torchtitan")
    read = config.ConfigManager().parse_args(options)
    assert read.parallelism.pipeline_parallel_degree == pp
    assert read.training.num_tokens_per_microbatch_per_dp_rank == 4 * 8192
    assert read.parallelism.num_pp_microbatches == (1 if pp == 1 else 4)
    assert read.training.num_tokens_per_train_step == 4 * 4 * 4 // pp * 8192
    assert not (read.checkpoint.enable or read.validator.enable or read.metrics.enable_tensorboard)
    assert read.parallelism.fsdp_reshard_after_forward == "always"
    assert type(read.activation_checkpoint).__qualname__.startswith("FullAC")


NANOTRON = {
    "general": {"project": "p", "run": "r"},
    "checkpoints": {"checkpoints_path": "c", "checkpoint_interval": 10, "save_final_state": True},
    "parallelism": {"dp": 1, "tp": 1, "pp": 1, "pp_engine": "1f1b", "tp_mode": "REDUCE_SCATTER"},
    "model": {
        "init_method": {"std": 0.025},
        "model_config": {
            "is_llama_config": True, "hidden_size": 256, "intermediate_size": 512,
            "num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 4,
            "tie_word_embeddings": True, "vocab_size": 1000, "max_position_embeddings": 128,
        },
    },
    "tokenizer": {"tokenizer_name_or_path": "t"},
    "tokens": {"sequence_length": 128, "train_steps": 1000, "micro_batch_size": 2,
               "batch_accumulation_per_replica": 1},
    "optimizer": {
        "zero_stage": 0, "weight_decay": 0.1, "clip_grad": 1.0, "accumulate_grad_in_fp32": True,
        "optimizer_factory": {"name": "adamW", "adam_eps": 1e-8, "adam_beta1": 0.9,
                              "adam_beta2": 0.95, "torch_adam_is_fused": True},
        "learning_rate_scheduler": {"learning_rate": 3e-4, "lr_warmup_steps": 2,
                                    "lr_warmup_style": "linear", "lr_decay_style": "cosine",
                                    "min_decay_lr": 1e-5},
    },
    "profiler": {"profiler_export_path": "./tb"},
}  # fmt: skip


def test_nanotron_reads_its_file_and_the_model_is_read_from_it(load: Load, tmp_path: Path) -> None:
    import yaml

    (tmp_path / "own.yaml").write_text(yaml.safe_dump(NANOTRON))
    trainer = "adapter: nanotron, config: own.yaml"
    more = "tp: [1, 2], pp: 1, zero_stage: [0, 1], sequence_parallel: [true, false]"
    space, options, files = trial(load, trainer, more)
    assert options == ["--config-file", "nanotron.yaml"]
    assert space.model is not None
    assert (space.model.num_layers, space.model.seq_length, space.model.norm) == (4, 128, "rmsnorm")
    written = yaml.safe_load(files["nanotron.yaml"])
    assert written["parallelism"] | {"pp_engine": ""} == {
        "dp": 2, "tp": 2, "pp": 1, "pp_engine": "", "tp_mode": "ALL_REDUCE",
        "tp_linear_async_communication": False,
    }  # fmt: skip
    assert written["tokens"]["train_steps"] == 7
    assert "profiler" not in written
    # An export has what a search sets, which goes into the user's file key by key.
    whole = {name: p.values[-1] for name, p in space.parameters.items()}
    export = yaml.safe_load(Export.of(space, whole, "nanotron").files["nanotron.yaml"])
    merged = {key: {**part, **export.get(key, {})} for key, part in NANOTRON.items()}
    merged["model"]["model_config"] = {
        **NANOTRON["model"]["model_config"], **export["model"].get("model_config", {}),
    }  # fmt: skip
    assert merged["parallelism"] == written["parallelism"]
    config = pytest.importorskip("nanotron.config", reason="needs nanotron", exc_type=ImportError)
    for name, text in (("trial", files["nanotron.yaml"]), ("export", yaml.safe_dump(merged))):
        (tmp_path / f"{name}.yaml").write_text(text)
        read = config.get_config_from_file(str(tmp_path / f"{name}.yaml"))
        assert (read.parallelism.dp, read.parallelism.tp, read.optimizer.zero_stage) == (2, 2, 1)
        assert read.tokens.micro_batch_size == 4


def test_picotron_is_told_all_degrees(load: Load, tmp_path: Path) -> None:
    own = {"distributed": {"use_cpu": True, "dp_size": 1}, "model": {"num_attention_heads": 8},
           "training": {"seq_length": 128, "max_tokens": 10**9}}  # fmt: skip
    (tmp_path / "own.json").write_text(json.dumps(own))
    more = "tp: [1, 2], pp: 1, pp_engine: [1f1b, afab]"
    _, options, files = trial(load, "adapter: picotron, config: own.json", more)
    assert options == ["--config", "picotron.json"]
    written = json.loads(files["picotron.json"])
    assert written["distributed"] == {
        "use_cpu": True, "dp_size": 2, "tp_size": 2, "pp_size": 1, "pp_engine": "afab",
    }  # fmt: skip
    assert written["training"] == {
        "seq_length": 128, "max_tokens": None, "total_train_steps": 7, "micro_batch_size": 4,
        "gradient_accumulation_steps": 4,
    }  # fmt: skip


def test_maxtext_counts_its_batch_by_device(load: Load, tmp_path: Path) -> None:
    (tmp_path / "base.yml").write_text("base_emb_dim: 2048\nmodel_name: default\nsteps: 9\n")
    trainer = "adapter: maxtext, config: base.yml"
    space, _, files = trial(load, trainer, "tp: [1, 2], pp: 1", "model: llama_8b")
    whole = {"num_nodes": 2, "mbs": 4, "gas": 4, "tp": 2, "pp": 1}
    command = dict(word.split("=") for word in space.command(whole, "/t") if "=" in word)
    # Two of four devices share a replica's four sequences.
    assert (command["per_device_batch_size"], command["gradient_accumulation_steps"]) == ("2", "4")
    assert (command["base_emb_dim"], command["steps"], command["ici_tensor_parallelism"]) == (
        "4096",
        "7",
        "2",
    )
    assert list(files) == ["run.yml"]
    named = f"{trainer}, args: [model_name=llama3.1-70b]"
    space, _, _ = trial(load, named, "tp: [1, 2], pp: 1")
    assert space.model is not None
    assert space.model.num_layers == 80
