"""Fine-tuning with frozen weights: its memory and its work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.cost.activations import layer_bytes
from analysis.cost.memory import MemoryConstants, memory
from analysis.cost.step import step
from benchmarks.cost_model import fine_tuning
from search_spaces import framework_named
from search_spaces.cluster import Cluster
from trainer.plan.flops import model_flops
from trainer.plan.jobs import FULL, NONE, Jobs, jobs

TRUTH = Path(__file__).parents[3] / "../shared/truth"
PEFT = framework_named("peft")
LORA, QLORA = 1, 2
LLAMA_70B = fine_tuning.llama("Llama-3.1-70B", 2048)
# What torch's saved tensors hold of one layer of transformers' Llama with PEFT, in bytes of a token
# by the hidden size (torch 2.13, transformers 5.23, peft 0.21; 512 tokens).
SMALL = {"num_layers": 4, "hidden_size": 1024, "num_heads": 16, "kv_heads": 4, "ffn_size": 2816}
SMALL |= {"gated": True, "vocab_size": 4096, "seq_length": 512, "tied_embeddings": False}
ALONE = {"tp": 1, "pp": 1, "dp": 1, "mbs": 1, "gas": 1, "zero_stage": 0}


@pytest.mark.parametrize(
    ("autocast", "options", "counted"),
    [
        (False, {"lora_rank": 8}, 64.79),
        (True, {"lora_rank": 8}, 47.73),
        (True, {"lora_rank": 64}, 52.38),
        (False, {"lora_rank": 8, "lora_targets": 2}, 37.63),
        (True, {"lora_rank": 8, "lora_targets": 2}, 33.70),
    ],
)
def test_a_layer_with_adapters_keeps_what_autograd_was_seen_to_keep(
    autocast: bool, options: dict[str, Any], counted: float
) -> None:
    job = jobs({**SMALL, **ALONE, "tuning": LORA, **options})
    habits = PEFT.with_habits(autocast_layers=autocast)
    kept = layer_bytes(job, habits, np.full(1, NONE))
    assert kept / 512 / 1024 == pytest.approx(counted, rel=2e-3)


def large(**options: Any) -> Jobs:
    given = {**ALONE, "dp": 8, "zero_stage": 3, "recompute": FULL, **options}
    return jobs(given, LLAMA_70B)


def test_lora_of_70b_fits_eight_gpus_where_full_training_does_not() -> None:
    job = large(tuning=[0, LORA, QLORA], lora_rank=16)
    parts = memory(job, PEFT, MemoryConstants())
    full, lora, qlora = parts.total / 2**30
    assert lora < 80 < full and qlora < lora
    states = (parts.gradients + parts.optimizer) / 2**30
    assert states[0] > 100 and states[1] < 1
    frozen = LLAMA_70B.num_parameters / 8 / 2**30
    assert parts.weights[1] / 2**30 == pytest.approx(2 * frozen, rel=0.02)
    # The layers' matrices in NF4; both tables, 2.1 G parameters, in 16 bits.
    tables = 2 * 128256 * 8192 / 8 / 2**30
    small = 0.5159 * (frozen - tables) + 2 * tables
    assert parts.weights[2] / 2**30 == pytest.approx(small, rel=0.03)  # adapters beside them


def test_a_reference_model_is_one_more_copy_beside_full_training_only() -> None:
    job = large(tuning=[0, 0, LORA, LORA], reference_model=[False, True, False, True])
    weights = memory(job, PEFT, MemoryConstants()).weights
    assert weights[1] - weights[0] == pytest.approx(weights[2], rel=0.02)
    assert weights[3] == weights[2]


def test_frozen_weights_need_four_flops_a_token_in_place_of_six() -> None:
    """Beside attention's scores, whose backward pass stays."""
    whole, frozen = (float(model_flops(LLAMA_70B, 1, trained)) for trained in (1, 0))
    rest = whole - frozen
    layers = LLAMA_70B.num_parameters - 128256 * 8192  # no product reads the embedding
    assert rest == pytest.approx(2 * layers * 2048, rel=1e-3)
    assert frozen / whole == pytest.approx(2 / 3, rel=0.02)


def test_adapters_are_reduced_and_updated_and_nothing_else() -> None:
    cluster = Cluster.named("dgx_h100")
    parts = step(large(tuning=[0, LORA, QLORA]), cluster, PEFT)
    assert parts.optimizer[1] < 0.01 * parts.optimizer[0]
    assert parts.total[1] < parts.total[0]
    assert parts.forward_backward[2] > parts.forward_backward[1]  # dequantizes


@pytest.mark.skipif(not TRUTH.is_dir(), reason=f"needs {TRUTH}")
def test_published_peaks_are_predicted() -> None:
    rows = [*fine_tuning.torchtune(TRUTH / fine_tuning.TABLES[0])]
    rows += fine_tuning.peft(TRUTH / fine_tuning.TABLES[1])
    lora = [abs(row.error) for row in rows if row.method == "lora"]
    qlora = [abs(row.error) for row in rows if row.method == "qlora"]
    assert len(lora) == 6 and max(lora) < 0.1
    assert len(qlora) == 3 and max(qlora) < 0.15
