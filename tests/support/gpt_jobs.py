"""Jobs of a GPT as columns, for what prices them."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.plan.jobs import Jobs, jobs


def gpt(**columns: Any) -> Jobs:
    """A GPT with 4 h in its feed-forward part, Korthikanti's 22B unless said otherwise."""
    shape: dict[str, Any] = {
        "num_layers": 48,
        "hidden_size": 6144,
        "num_heads": 64,
        "gated": False,
        "vocab_size": 51200,
        "seq_length": 2048,
        "tied_embeddings": True,
        "tp": 8,
        "pp": 1,
        "dp": 1,
        "mbs": 4,
        "gas": 1,
        "zero_stage": 0,
    } | columns
    shape.setdefault("kv_heads", shape["num_heads"])
    shape.setdefault("ffn_size", 4 * np.asarray(shape["hidden_size"]))
    return jobs(shape)
