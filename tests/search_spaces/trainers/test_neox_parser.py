"""What the adapter writes is read by GPT-NeoX's own parser, where a checkout is on the path."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from search_spaces import SearchSpace

Load = Callable[[str], SearchSpace]
CHECKOUTS = [
    p for p in map(Path, sys.path) if (p / "megatron/neox_arguments/arguments.py").is_file()
]
SPACE = """\
version: 1
cluster: dgx_h100
model: {num_layers: 12, hidden_size: 768, num_heads: 12, vocab_size: 50304, seq_length: 2048,
        positions: rotary, tied_embeddings: false}
trainer: {adapter: neox, config: own.yml}
parameters: {num_nodes: [2], tp: [2], pp: [1, 2], mbs: [1], gas: [4], zero_stage: [1, 2],
             precision: [bf16, fp16], recompute: [full, none], sequence_parallel: [true, false]}
objective: {maximize: tokens_per_second}
"""
READ = """\
import contextlib, json, sys
with contextlib.redirect_stdout(sys.stderr):
    from megatron.neox_arguments import NeoXArgs
    args = NeoXArgs.from_ymls([sys.argv[1]])
names = ("model_parallel_size pipe_parallel_size train_batch_size gradient_accumulation_steps "
         "precision sequence_parallel checkpoint_activations train_iters zero_optimization")
print(json.dumps({name: getattr(args, name) for name in names.split()}))
"""


@pytest.mark.skipif(not CHECKOUTS, reason="needs a checkout of GPT-NeoX on PYTHONPATH")
@pytest.mark.parametrize(("pp", "zero_stage", "precision"), [(1, 2, "bf16"), (2, 1, "fp16")])
def test_neox_takes_what_is_written_over_its_own_example(
    pp: int, zero_stage: int, precision: str, load: Load, tmp_path: Path
) -> None:
    shutil.copy(CHECKOUTS[0] / "configs/125M.yml", tmp_path / "own.yml")
    space = load(SPACE)
    config = {name: parameter.values[0] for name, parameter in space.parameters.items()}
    config |= {"pp": pp, "zero_stage": zero_stage, "precision": precision}
    assert space.first_violation(config) is None
    (tmp_path / "neox.yml").write_text(dict(space.files(config, "/t"))["neox.yml"])
    done = subprocess.run(
        [sys.executable, "-c", READ, "neox.yml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    read = json.loads(done.stdout.splitlines()[-1])
    assert read.pop("zero_optimization")["stage"] == zero_stage
    assert read == {
        "model_parallel_size": 2,
        "pipe_parallel_size": 0 if pp == 1 else 2,  # 0: without the engine of pipelines
        "train_batch_size": 16 // (2 * pp) * 4,
        "gradient_accumulation_steps": 4,
        "precision": {"bf16": "bfloat16"}.get(precision, precision),
        "sequence_parallel": True,
        "checkpoint_activations": True,
        "train_iters": 7,
    }
