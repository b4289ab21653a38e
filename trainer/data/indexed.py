"""Megatron's indexed dataset on disk: a file of tokens and its index. Torch-free.

``PREFIX.bin`` holds the tokens of all documents, one after the other, in one number type.
``PREFIX.idx`` says which type and where each sequence begins (little-endian; Megatron-LM,
``megatron/core/datasets/indexed_dataset.py``)::

    9 bytes  b"MMIDIDX\\0\\0"
    uint64   version, 1
    uint8    code of the tokens' number type, see DTYPES
    uint64   S, number of sequences
    uint64   D, number of document indices (documents + 1)
    int32[S] tokens per sequence
    int64[S] byte offset of each sequence in PREFIX.bin
    int64[D] the sequence at which each document begins, then S
"""

from __future__ import annotations

import bisect
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from foundation.files import FileError, size_of
from foundation.messages import shown
from trainer.plan.limits import ConfigError

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
VERSION = 1
_NAMES = ("uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16")
DTYPES: dict[int, np.dtype] = {
    code: np.dtype(name).newbyteorder("<") for code, name in enumerate(_NAMES, start=1)
}
INT32, UINT16 = 4, 8
_REMEDY = "build it with `meshtune prepare-data FILES --out {prefix}`"


@dataclass(frozen=True)
class Index:
    """Tokens in ``PREFIX.bin`` and their documents, from ``PREFIX.idx``."""

    path: Path
    dtype: np.dtype
    num_tokens: int
    num_sequences: int
    num_boundaries: int  # documents + 1

    @cached_property
    def _offsets(self) -> np.ndarray:
        sizes_end = HEADER.size + 4 * self.num_sequences
        return np.memmap(self.path, "<i8", "r", sizes_end, (self.num_sequences,))

    @cached_property
    def _first(self) -> np.ndarray:
        offsets_end = HEADER.size + 12 * self.num_sequences
        return np.memmap(self.path, "<i8", "r", offsets_end, (self.num_boundaries,))

    def begin(self, document: int) -> int:
        """First token of a document, counted from the beginning of the data."""
        return int(self._offsets[self._first[document]]) // self.dtype.itemsize

    def starts(self, begin: int, count: int) -> np.ndarray:
        """Start of each token's document, int64, relative to ``begin``; at least 0."""
        found = np.zeros(count, np.int64)
        documents = range(self.num_boundaries - 1)  # the last entry is the end of all
        number = bisect.bisect_right(documents, begin, key=self.begin)
        while number < len(documents) and (start := self.begin(number) - begin) < count:
            found[start:] = start
            number += 1
        return found


def read_index(prefix: str | Path) -> Index:
    """Check ``PREFIX.idx`` against the sizes of both files, in constant time.

    Raises ConfigError if a file is missing, truncated or of another kind; names it and the remedy.
    """
    idx, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    remedy = _REMEDY.format(prefix=shown(str(prefix)))
    try:
        idx_bytes, bin_bytes = size_of(idx), size_of(data)
        with idx.open("rb") as file:
            header = file.read(HEADER.size)
    except FileError as error:
        raise ConfigError(f"{error}; {remedy}") from error
    except OSError as error:
        raise ConfigError(f"{idx}: {error.strerror}; {remedy}") from error
    if len(header) < HEADER.size or not header.startswith(MAGIC):
        raise ConfigError(f"{idx}: not the index of a Megatron indexed dataset; {remedy}")
    _, version, code, num_sequences, num_boundaries = HEADER.unpack(header)
    if version != VERSION or code not in DTYPES:
        raise ConfigError(
            f"{idx}: version {version}, number type {code}; only version {VERSION} with types "
            f"1 to {len(DTYPES)} is known; {remedy}"
        )
    if idx_bytes < HEADER.size + 12 * num_sequences + 8 * num_boundaries:
        raise ConfigError(f"{idx}: truncated at {idx_bytes} bytes; {remedy}")
    expected_bytes = _data_bytes(idx, num_sequences, DTYPES[code].itemsize)
    if bin_bytes != expected_bytes or bin_bytes % DTYPES[code].itemsize:
        raise ConfigError(
            f"{data}: {bin_bytes} bytes, but {idx.name} describes {expected_bytes}: truncated, or "
            f"of another dataset; {remedy}"
        )
    tokens = bin_bytes // DTYPES[code].itemsize
    return Index(idx, DTYPES[code], tokens, num_sequences, num_boundaries)


def _data_bytes(idx: Path, num_sequences: int, itemsize: int) -> int:
    """Byte at which the last sequence ends; sequences are stored one after the other."""
    if num_sequences == 0:
        return 0
    sizes_end = HEADER.size + 4 * num_sequences
    last_tokens = np.fromfile(idx, "<i4", 1, offset=sizes_end - 4)
    last_offset = np.fromfile(idx, "<i8", 1, offset=sizes_end + 8 * (num_sequences - 1))
    return int(last_offset[0]) + int(last_tokens[0]) * itemsize
