"""Models that the checks train. Torch-free."""

from __future__ import annotations

from typing import Any

_LLAMA = {"norm": "rmsnorm", "positions": "rotary", "activation": "swiglu", "linear_bias": False}
TINY = {
    **_LLAMA, "num_layers": 2, "hidden_size": 128, "num_heads": 4, "num_kv_heads": 2,
    "ffn_hidden_size": 256, "vocab_size": 256, "seq_length": 64, "tied_embeddings": False,
}  # fmt: skip
# Layers of Llama 3.2 1B and Llama 3.1 8B, with their vocabulary, so few that states fit one GPU.
SIZES: dict[str, dict[str, Any]] = {
    "1B": {**_LLAMA, "num_layers": 16, "hidden_size": 2048, "num_heads": 32, "num_kv_heads": 8,
           "ffn_hidden_size": 8192, "vocab_size": 128256, "seq_length": 8192,
           "tied_embeddings": True},
    "8B": {**_LLAMA, "num_layers": 4, "hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8,
           "ffn_hidden_size": 14336, "vocab_size": 128256, "seq_length": 8192,
           "tied_embeddings": False},
}  # fmt: skip
