"""What the adapter writes is read by Megatron-LM's own parser, where a checkout is on the path."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from search_spaces import SearchSpace
from trainer.plan.layouts import LayoutError, parsed_layout

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
    "gpt_22b": {
        "tp": 4,
        "pp": 1,
        "zero_stage": 0,
        "recompute": "selective",
        "precision": "fp16",
        "cuda_graphs": "step",
    },
    "deepseek_v3": {
        "tp": 1,
        "pp": 1,
        "ep": 8,
        "zero_stage": 1,
        "precision": "bf16",
        "recompute": "selective",
        "recompute_modules": "mla_up_proj,moe_act",
        "moe_comm_overlap": True,
        "moe_token_dispatcher": "alltoall",
    },
    "llama_70b": {
        "tp": 2,
        "pp": 4,
        "vpp": 2,
        "pipeline_layout": "E|(t*13|)*6,t*2L",
        "precision": "bf16",
    },
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
         "use_distributed_optimizer recompute_granularity recompute_modules moe_layer_freq "
         "kv_lora_rank pipeline_model_parallel_layout overlap_moe_expert_parallel_comm "
         "te_rng_tracker")
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
    "gpt_22b": {
        "ffn_hidden_size": 24576,
        "data_parallel_size": 4,
        "seq_length": 2048,
        "te_rng_tracker": True,
    },
    "deepseek_v3": {
        "moe_layer_freq": [0] * 3 + [1] * 58,
        "kv_lora_rank": 512,
        "recompute_granularity": "selective",
        "recompute_modules": ["mla_up_proj", "moe_act"],
        "overlap_moe_expert_parallel_comm": True,
    },
    "llama_70b": {
        "num_layers": 80,
        "virtual_pipeline_model_parallel_size": 2,
        "pipeline_model_parallel_layout": "E|(t*13|)*6,t*2L",
    },
}


def on_the_path() -> bool:
    return any((Path(each) / "megatron/training/arguments.py").is_file() for each in sys.path)


NEEDED = pytest.mark.skipif(
    not on_the_path(), reason="needs a checkout of Megatron-LM on PYTHONPATH"
)


@NEEDED
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


# What Megatron-LM says of each: layers of every chunk of every rank, or that it takes none.
LISTED = """\
import json, sys
from megatron.core.transformer.enums import LayerType
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

def told(text, pp):
    try:
        layout = PipelineParallelLayerLayout(text, pp)
        flat = layout.flatten_layout
        layout.validate_layer_layout(flat.count(LayerType.decoder), flat.count(LayerType.mtp))
    except AssertionError:
        return None
    return [[[c.count(LayerType.decoder), c.count(LayerType.mtp)] for c in rank]
            for rank in layout.layout]

print(json.dumps([told(text, pp) for text, pp in json.load(sys.stdin)]))
"""
REFUSED_HERE_ALONE = ["|Et|L", "Et|L|", "E|L", "E(t|)*3*2L"]
"""Megatron has the ends on the first and the last stage wherever their letters are."""


@NEEDED
def test_layouts_are_read_as_megatron_reads_them() -> None:
    random = np.random.default_rng(3)
    pieces = ["t", "t", "tt", "t*3", "|", "|", "(t|)*2", "(tt|t)*3", "m", "m*2", ",", "|m"]
    spoiled = ["E", "L", "x", "*", "(", ")*2", "*0", "t*2*2", "((t)*2|)*2"]
    asked = [("Et*3|(tt|)*29,m|L", 16), ("Et*3|(tt|)*29,m|L", 32)]
    asked += [(text, 2) for text in REFUSED_HERE_ALONE]
    for _ in range(1500):
        some = [str(piece) for piece in random.choice(pieces, random.integers(1, 9))]
        some = some if random.random() < 0.8 else [*some, str(random.choice(spoiled))]
        asked.append((f"E{''.join(some)}L", int(random.choice([1, 2, 3, 4]))))
    done = subprocess.run(
        [sys.executable, "-c", LISTED],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    taken = 0
    for (text, pp), told in zip(asked, json.loads(done.stdout), strict=True):
        try:
            layout = parsed_layout(text)
            vpp = len(layout.chunks) // pp
            ranks = layout.ranks(pp) if layout.fits(pp, vpp) else None
        except LayoutError:
            ranks = None
        if ranks is None and told is not None:
            repeated = re.search(r"\*\d+\*", text.replace(",", ""))  # read by luck
            assert text in REFUSED_HERE_ALONE or repeated or not sum_of(told), text
            continue
        read = ranks and [[[chunk.layers, chunk.predictors] for chunk in rank] for rank in ranks]
        assert read == told, (text, pp)
        taken += told is not None
    assert taken > 100


def sum_of(told: list[list[list[int]]]) -> int:
    """Transformer layers of all chunks."""
    return sum(layers for rank in told for layers, _ in rank)
