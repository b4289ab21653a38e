"""The compared schemes: the trainer's settings of each placement, and the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.plan.model import ModelConfig

PAIR = 2
"""Ranks on a card where a node has more than two ranks; in a node of two, the pair is the node."""

SCHEMES: dict[str, Mapping[str, Any]] = {
    "ZeRO-3": {"placement": "zero3"},
    # As published and as in the papers' measurements: the node's copy of the weights is renewed in
    # every forward pass. The trainer's own default renews it once the weights have changed.
    "ZeRO++": {"placement": "zero++", "refresh_secondary": "micro_batch"},
    "ZeRO++, copy kept": {"placement": "zero++"},
    "ZeRO-topo": {"placement": "zero_topo"},
    "qgZ": {"placement": "zero3", "quantize_gradients": True},
    "qgZ + hpZ": {
        "placement": "hpz",
        "quantize_gradients": True,
        "refresh_secondary": "micro_batch",
    },
    "qgZ + hpZ, copy kept": {"placement": "hpz", "quantize_gradients": True},
}

MODEL = ModelConfig(num_layers=2, hidden_size=256, num_heads=4, vocab_size=257, seq_length=64)
MICRO_BATCH = 8
"""Sequences. Enough tokens that computing outweighs quantizing and copying, as on a GPU."""


def train_config(
    scheme: str, data: Path, gas: int, ranks_per_node: int, measured_steps: int
) -> dict[str, Any]:
    """A ``TrainConfig`` of a scheme; weights and unquantized gradients travel in two bytes."""
    return {
        "model": MODEL.model_dump(),
        "data": str(data),
        "mbs": MICRO_BATCH,
        "gas": gas,
        "precision": "bf16",
        "reduce_precision": "bf16",
        "ranks_per_pair": PAIR if ranks_per_node > PAIR else 1,
        "device": "cpu",
        "warmup_steps": 2,
        "measured_steps": measured_steps,
        **SCHEMES[scheme],
    }
