"""Token files as Megatron-LM's own code writes them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

# Megatron-LM's own table of number types.
MEGATRON_CODES = {
    "uint8": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "float64": 6,
    "float32": 7,
    "uint16": 8,
}


def write_megatron(prefix: Path, documents: list[list[int]], dtype: str) -> None:
    """The two files, byte by byte as Megatron-LM's IndexedDatasetBuilder writes them."""
    arrays = [np.array(tokens, dtype) for tokens in documents]
    sizes = [len(array) for array in arrays]
    offsets = [sum(sizes[:i]) * np.dtype(dtype).itemsize for i in range(len(sizes))]
    Path(f"{prefix}.bin").write_bytes(b"".join(array.tobytes() for array in arrays))
    Path(f"{prefix}.idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<Q", 1)
        + struct.pack("<B", MEGATRON_CODES[dtype])
        + struct.pack("<Q", len(sizes))
        + struct.pack("<Q", len(sizes) + 1)
        + np.array(sizes, np.int32).tobytes()
        + np.array(offsets, np.int64).tobytes()
        + np.arange(len(sizes) + 1, dtype=np.int64).tobytes()
    )
