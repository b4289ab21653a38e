"""What the adapter writes is read by Megatron-LM's own parser, where a checkout is on the path."""

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
trainer: {{adapter: megatron-lm}}
parameters: {{num_nodes: [2], mbs: [1], gas: [4], {more}}}
objective: {{maximize: tokens_per_second}}
"""
CASES = {
    "llama_8b": {
        "tp": 2,
        "pp": 2,
        "vpp": 2,
        "cp": 2,
        "zero_stage": 1,
        "recompute": "full",
        "precision": "bf16",
        "sequence_parallel": True,
        "overlap_grad_reduce": True,
    },
    "gpt_22b": {"tp": 4, "pp": 1, "zero_stage": 0, "recompute": "selective", "precision": "fp16"},
    "deepseek_v3": {"tp": 1, "pp": 1, "ep": 8, "zero_stage": 1, "precision": "bf16"},
}
# Its checks ask for the GPU's generation and call that of one that is missing an error.
READ = """\
import contextlib, json, sys, torch, types
torch.cuda.get_device_capability = lambda *_: (9, 0)
torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0)
with contextlib.redirect_stdout(sys.stderr):
    from megatron.training import arguments
    args = arguments.validate_args(arguments.parse_args())
names = ("num_layers ffn_hidden_size padded_vocab_size seq_length tensor_model_parallel_size "
         "virtual_pipeline_model_parallel_size data_parallel_size global_batch_size train_iters "
         "use_distributed_optimizer recompute_granularity moe_layer_freq kv_lora_rank")
print(json.dumps({name: getattr(args, name, None) for name in names.split()}))
"""
EXPECTED = {
    "llama_8b": {
        "num_layers": 32,
        "ffn_hidden_size": 14336,
        "tensor_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 2,
        "data_parallel_size": 2,
        "global_batch_size": 8,
        "use_distributed_optimizer": True,
        "train_iters": 7,
        "recompute_granularity": "full",
    },
    "gpt_22b": {"ffn_hidden_size": 24576, "data_parallel_size": 4, "seq_length": 2048},
    "deepseek_v3": {"moe_layer_freq": [0] * 3 + [1] * 58, "kv_lora_rank": 512},
}


def on_the_path() -> bool:
    return any((Path(each) / "megatron/training/arguments.py").is_file() for each in sys.path)


@pytest.mark.skipif(not on_the_path(), reason="needs a checkout of Megatron-LM on PYTHONPATH")
@pytest.mark.parametrize("model", list(CASES))
def test_megatrons_parser_takes_what_is_written(model: str, load: Load) -> None:
    more = ", ".join(f"{name}: [{json.dumps(value)}]" for name, value in CASES[model].items())
    space = load(SPACE.format(model=model, more=more))
    config = {"num_nodes": 2, "mbs": 1, "gas": 4, **CASES[model]}
    assert space.first_violation(config) is None
    done = subprocess.run(
        [sys.executable, "-c", READ, *space.command(config, "/t")[2:]],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), "WORLD_SIZE": "16", "RANK": "0",
             **space.environment(config, "/t")},
        capture_output=True,
        text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    read = json.loads(done.stdout)
    assert {name: read[name] for name in EXPECTED[model]} == EXPECTED[model]
