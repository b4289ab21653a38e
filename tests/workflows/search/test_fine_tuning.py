"""Real fine-tuning by the trainers themselves: a tiny model on CPUs, no hub.

Each trainer needs an environment of its own, since their pins exclude each other's and ours. Its
python goes into a variable: LLAMA_FACTORY_PYTHON=/path/bin/python, TRL_PYTHON, AXOLOTL_PYTHON,
MS_SWIFT_PYTHON, TORCHTUNE_PYTHON, LITGPT_PYTHON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis import Trial, read_run
from support import tiny_model
from workflows.cli.main import main

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(3600)]
SPACE = """\
version: 1
model: {{base: model/config.json, seq_length: 256}}
cluster: {{name: box, gpus_per_node: 1, memory_gib: 4, peak_fp32_tflops: 0.1}}
trainer: {trainer}
tuning: {tuning}
parameters: {{mbs: 4, gas: 2, {more}}}
objective: {{maximize: {objective}}}
trial: {{warmup_steps: 1, measured_steps: 3}}
budget: {{trials: 2}}
finalists: false
"""
STEPS, ROWS, LENGTH = 4, 8, 256
FULL, ADAPTER = "model.safetensors", "adapter_model.safetensors"
FILES: dict[str, Mapping[str, Any]] = {
    "llama-factory": {
        "model_name_or_path": "HERE/model", "stage": "sft", "dataset_dir": "HERE",
        "dataset": "asked", "template": "default", "cutoff_len": LENGTH, "use_cpu": True,
        "preprocessing_num_workers": 1, "output_dir": "HERE/mine", "bf16": True,
    },
    "axolotl": {
        "base_model": "HERE/model", "sequence_len": LENGTH, "optimizer": "adamw_torch",
        "datasets": [{"path": "HERE/data/train.jsonl", "type": "chat_template", "ds_type": "json"}],
        "learning_rate": 1e-4, "lora_alpha": 16, "output_dir": "HERE/mine", "bf16": False,
        "use_cpu": True,
    },
    "torchtune": {
        "output_dir": "HERE/mine", "seed": 0, "shuffle": False, "clip_grad_norm": None,
        "model": {
            "_component_": "torchtune.models.llama2.lora_llama2", "lora_alpha": 16,
            "lora_attn_modules": ["q_proj"], "apply_lora_to_mlp": False, "lora_rank": 4,
            "apply_lora_to_output": False, "lora_dropout": 0.0, "max_seq_len": 512,
            "vocab_size": tiny_model.WORDS, "num_layers": tiny_model.LAYERS,
            "num_heads": tiny_model.HEADS, "num_kv_heads": tiny_model.GROUPS,
            "embed_dim": tiny_model.WIDTH, "intermediate_dim": tiny_model.INNER,
        },
        "tokenizer": {
            "_component_": "torchtune.models.llama2.llama2_tokenizer",
            "path": "HERE/spm.model", "max_seq_len": LENGTH,
        },
        "checkpointer": {
            "_component_": "torchtune.training.FullModelHFCheckpointer", "model_type": "LLAMA2",
            "checkpoint_dir": "HERE/model", "checkpoint_files": [FULL], "output_dir": "HERE/mine",
        },
        "dataset": {
            "_component_": "torchtune.datasets.instruct_dataset", "source": "json",
            "data_files": "HERE/asked.json", "split": "train",
            "column_map": {"input": "instruction", "output": "output"},
        },
        "optimizer": {"_component_": "torch.optim.AdamW", "lr": 1e-4},
        "lr_scheduler": {
            "_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
            "num_warmup_steps": 1,
        },
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "device": "cpu", "enable_activation_offloading": False, "compile": False,
        "metric_logger": {"_component_": "torchtune.training.metric_logging.DiskLogger"},
    },
}  # fmt: skip
ARGUMENTS = {
    "trl": "--model_name_or_path HERE/model --dataset_name HERE/data --max_length 256"
    " --use_cpu true --dtype float32 --packing_strategy wrapped --output_dir HERE/mine",
    "ms-swift": "--model HERE/model --model_type llama --template chatml --max_length 256"
    " --dataset HERE/data/train.jsonl --use_cpu true --bf16 false --fp16 false"
    " --torch_dtype float32 --attn_impl sdpa --dataset_num_proc 1 --output_dir HERE/mine",
    "litgpt": "HERE/lit/Tiny --data JSON --data.json_path HERE/asked.json --data.num_workers 0"
    " --data.val_split_fraction 0.05 --train.max_seq_length 256 --out_dir HERE/mine",
}


@dataclass(frozen=True)
class Job:
    """What one trainer is asked to search, and what it then leaves behind."""

    trainer: str
    tuning: str
    objective: str
    saves: str = ADAPTER
    more: str = "recompute: [none]"
    entry: str = ""

    def written(self, folder: Path) -> str:
        """The space, with the trainer's own file beside it."""
        here = str(folder)
        if self.trainer in FILES:
            own = json.dumps(FILES[self.trainer]).replace("HERE", here)
            (folder / "own.yaml").write_text(yaml.safe_dump(json.loads(own)))
        # One thread: several wait for each other by spinning where the machine does other work.
        env = {"AXOLOTL_DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"}
        spec: dict[str, Any] = {"adapter": self.trainer, "env": env}
        spec |= {"entry": self.entry} if self.entry else {}
        args = ARGUMENTS.get(self.trainer)
        spec |= {"args": args.replace("HERE", here)} if args else {"config": "own.yaml"}
        return SPACE.format(
            trainer=json.dumps(spec), tuning=self.tuning, more=self.more, objective=self.objective
        )


def searched(job: Job, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, Trial]:
    """The trials of a search with the trainer's own environment first on the PATH; all are ok."""
    variable = job.trainer.replace("-", "_").upper() + "_PYTHON"
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"needs {variable}, the python of an environment with {job.trainer}")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # each trial would compile all
    monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")  # LLaMA-Factory's, of its pins
    monkeypatch.setenv("PATH", f"{Path(python).parent}:{os.environ['PATH']}")
    subprocess.run([python, tiny_model.__file__, str(folder), job.trainer], check=True)
    (folder / "tune.yaml").write_text(job.written(folder))
    assert main(["search", "tune.yaml", "--launcher", "local", "--no-report"]) == 0
    assert not (folder / "mine").exists()  # the user's own results are never written over
    trials = dict(read_run(folder / "runs/tune").trials)
    for trial in trials.values():
        assert trial.ok, trial.message
    return trials


def log(folder: Path, number: int, stream: str = "stdout") -> str:
    return (folder / f"runs/tune/trials/{number:04}/{stream}.log").read_text()


def saved(folder: Path, number: int) -> set[str]:
    """Kinds of weights that a trial left in its own folder."""
    output = folder / f"runs/tune/trials/{number:04}/output"
    names = {path.name for path in output.rglob("*.safetensors")}
    return names & {FULL, ADAPTER}


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_packing_is_compared_by_the_real_tokens_that_trl_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A packed step has more of them, and nothing is taken for sequences of full length."""
    tuning = f"{{method: [{method}], rank: 8, packing: [false, true]}}"
    job = Job("trl", tuning, "tokens_per_second", more="precision: [fp32]")
    counted = {}
    for number, trial in searched(job, tmp_path, monkeypatch).items():
        assert trial.result is not None
        counted[trial.config["packing"]] = trial.result["tokens"]
        assert trial.config["tuning"] == method
        assert saved(tmp_path, number) == {FULL if method == "full" else ADAPTER}
    assert counted[False] < 0.8 * counted[True] <= 0.8 * STEPS * ROWS * LENGTH


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_llama_factorys_packing_passes_over_more_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Its count of a packed step is all of the sequences; of a padded one the real tokens."""
    tuning = f"{{method: [{method}], rank: 8, packing: [false, true]}}"
    job = Job("llama-factory", tuning, "epochs_per_second", more="precision: [fp32]")
    passes = {}
    for number, trial in searched(job, tmp_path, monkeypatch).items():
        assert trial.result is not None
        packed = trial.config["packing"]
        passes[packed] = float(re.findall(r"'epoch': '?([\d.]+)", log(tmp_path, number))[-1])
        tokens = trial.result["padded_tokens" if packed else "tokens"]
        assert packed == (tokens == STEPS * ROWS * LENGTH)
        assert ("tokens" in trial.result) != packed
        assert saved(tmp_path, number) == {FULL if method == "full" else ADAPTER}
    assert 1.25 * passes[False] < passes[True]


JOBS = [
    Job("axolotl", "{method: [lora], rank: 8, targets: linear, packing: [false]}",
        "labelled_tokens_per_second_per_gpu"),
    Job("ms-swift", "{method: [full, lora], rank: 8}", "samples_per_second"),
    Job("torchtune", "{method: [lora, qlora], rank: 8, packing: [true]}",
        "labelled_tokens_per_second_per_gpu", more="precision: [fp32], recompute: [none]",
        entry="lora_finetune_single_device"),
    Job("litgpt", "{method: [lora], rank: 8}", "tokens_per_second", more="precision: [fp32]"),
]  # fmt: skip


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.trainer)
def test_a_trainer_takes_what_is_written_for_it_and_its_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Job
) -> None:
    for number, trial in searched(job, tmp_path, monkeypatch).items():
        assert trial.result is not None and trial.result[job.objective] > 0
        assert trial.result["loss"] > 0
        adapted = trial.config["tuning"] != "full"
        if job.trainer == "ms-swift":  # which saves nothing, as it was told
            share = re.search(r"Trainable \[([\d.]+)%\]", log(tmp_path, number, "stderr"))
            assert share and (float(share[1]) < 50) == adapted
        elif job.trainer == "litgpt":  # which saves in a format of its own
            folder = tmp_path / f"runs/tune/trials/{number:04}/output/final"
            assert (folder / "lit_model.pth.lora").exists() == adapted
        else:
            assert saved(tmp_path, number) == {ADAPTER if adapted else FULL}
