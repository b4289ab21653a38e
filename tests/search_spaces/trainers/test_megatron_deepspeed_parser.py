"""What the adapter writes is read by Megatron-DeepSpeed's own parser, where a checkout is on the
path; it needs transformers before 5, six, regex and einops beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from search_spaces import SearchSpace

Load = Callable[[str], SearchSpace]
SPACE = """\
version: 1
cluster: dgx_h100
model: {model}
trainer: {{adapter: megatron-deepspeed}}
parameters: {{num_nodes: [2], mbs: [1], gas: [4], {more}}}
objective: {{maximize: tokens_per_second}}
"""
CASES = {
    "gpt_22b": {"tp": 4, "pp": 2, "zero_stage": 1, "recompute": "full", "precision": "bf16"},
    "llama_8b": {"tp": 2, "pp": 1, "cp": 2, "zero_stage": 3, "precision": "fp16"},
}
EXPECTED = {
    "gpt_22b": {
        "num_layers": 48,
        "pipeline_model_parallel_size": 2,
        "data_parallel_size": 2,
        "global_batch_size": 8,
        "zero_stage": 1,
        "train_iters": 7,
        "bf16": True,
        "checkpoint_activations": True,
        "deepspeed_activation_checkpointing": True,
        "deepspeed_config": "ds_config.json",
    },
    "llama_8b": {
        "num_key_value_heads": 8,
        "ffn_hidden_size": 14336,
        "swiglu": True,
        "ds_sequence_parallel_size": 2,
        "no_pipeline_parallel": True,
        "zero_stage": 3,
        "fp16": True,
        "rope_theta": 500000,
    },
}
READ = """\
import contextlib, json, sys
with contextlib.redirect_stdout(sys.stderr):
    from megatron import arguments
    args = arguments.validate_args(arguments.parse_args())
names = json.loads(sys.stdin.read())
print(json.dumps({name: getattr(args, name, None) for name in names}))
"""


def on_the_path() -> bool:
    return any(
        (Path(each) / "megatron/arguments.py").is_file()
        and "deepspeed" in (Path(each) / "megatron/arguments.py").read_text()
        for each in sys.path
    )


@pytest.mark.skipif(not on_the_path(), reason="needs Megatron-DeepSpeed on PYTHONPATH")
@pytest.mark.parametrize("model", list(CASES))
def test_its_parser_takes_what_is_written(model: str, load: Load, tmp_path: Path) -> None:
    more = ", ".join(f"{name}: [{json.dumps(value)}]" for name, value in CASES[model].items())
    space = load(SPACE.format(model=model, more=more))
    config = {"num_nodes": 2, "mbs": 1, "gas": 4, **CASES[model]}
    assert space.first_violation(config) is None
    for name, text in space.files(config, str(tmp_path)).items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", READ, *space.command(config, str(tmp_path))[2:]],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), "WORLD_SIZE": "16", "RANK": "0",
             "DS_ACCELERATOR": "cpu", **space.environment(config, str(tmp_path))},
        cwd=tmp_path,
        input=json.dumps([*EXPECTED[model]]),
        capture_output=True,
        text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == EXPECTED[model]
