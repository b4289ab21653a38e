"""Tensors in files of the safetensors format: eight bytes, a table as JSON, and the numbers.

Files are mapped into memory, and nothing in them is executed.
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foundation.files import FileError, read_json, size_of
from trainer.plan.limits import ConfigError

SINGLE, TABLE = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_MAX_TABLE_BYTES = 100_000_000  # as the format's own reader


def read_folder(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a model by its name, mapped into memory and not to be written to.

    They are in ``model.safetensors``, or in several files that have an index.

    Raises ConfigError if there is none, or a file is invalid.
    """
    try:
        if not (folder / TABLE).exists():
            return read_file(folder / SINGLE)
        table = read_json(folder / TABLE)
        names = table.get("weight_map") if isinstance(table, dict) else None
        if not isinstance(names, dict) or not all(
            isinstance(file, str) and Path(file).name == file for file in names.values()
        ):
            raise ConfigError(f"{folder / TABLE}: accepted a weight_map to files beside it")
        found: dict[str, Tensor] = {}
        for file in sorted(set(names.values())):
            found |= read_file(folder / file)
    except FileError as error:
        raise ConfigError(f"{error}; accepted what save_pretrained writes") from None
    return found


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one file.

    Raises:
        FileError: if there is none.
        ConfigError: if it is something else, or shorter than its table says.
    """
    size = size_of(path)
    with path.open("rb") as file:
        (table_bytes,) = struct.unpack("<Q", file.read(8).ljust(8, b"\xff"))
        if table_bytes > min(size - 8, _MAX_TABLE_BYTES):
            raise ConfigError(
                f"{path}: not in the safetensors format, or cut short: fetch it again"
            )
        try:
            table = json.loads(file.read(table_bytes))
            entries = {name: _entry(entry) for name, entry in table.items() if name[:2] != "__"}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"{path}: its table cannot be read: {error}; fetch it again"
            ) from None
    begin = 8 + table_bytes
    data = np.memmap(path, np.uint8, "c", begin) if size > begin else np.empty(0, np.uint8)
    found = {}
    for name, (dtype, shape, first, last) in entries.items():
        if last - first != torch.Size(shape).numel() * dtype.itemsize or last > len(data):
            raise ConfigError(
                f"{path}: {name} is not in the file as its table says: cut short? Fetch it again"
            )
        found[name] = torch.from_numpy(data[first:last]).view(dtype).view(shape)
    return found


def _entry(entry: Mapping[str, Any]) -> tuple[torch.dtype, list[int], int, int]:
    first, last = entry["data_offsets"]
    shape = [int(size) for size in entry["shape"]]
    if not 0 <= first <= last or min(shape, default=0) < 0:
        raise ValueError(f"offsets {first} to {last}, shape {shape}")
    return _DTYPES[entry["dtype"]], shape, first, last


def write_file(
    path: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[tuple[str, Tensor]]
) -> None:
    """Write float32 tensors on the host as they come, with the names and order of ``shapes``."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * torch.Size(shape).numel()
        table[name] = {"dtype": "F32", "shape": [*shape], "data_offsets": [begin, end]}
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % 8)  # numbers begin at a multiple of eight bytes
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for (name, shape), (given, tensor) in zip(shapes.items(), tensors, strict=True):
            assert name == given and tuple(tensor.shape) == shape and tensor.dtype == torch.float32
            file.write(memoryview(tensor.contiguous().numpy()).cast("B"))
