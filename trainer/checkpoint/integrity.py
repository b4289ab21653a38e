"""Integrity of a checkpoint: a checksum per file, and contents that are only data.

CRC-32 guards against failing disks and copies, not against people. It finds all errors of up to 32
bits in a row and all but one in 4e9 of the others, at 2.6 GB/s on one core (SHA-256 1.1 GB/s).
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from foundation.files import FileError, parse_json, read_bytes
from foundation.messages import shown

CHECKSUMS_NAME = "checksums.json"
TABLE_NAME = ".metadata"
MAX_BYTES = 1 << 28  # of a file that is read whole; checksums of a million files fit
_BLOCK_BYTES = 1 << 20


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; the message is one line."""


def checksum(file: Path) -> str:
    """CRC-32 of a file's bytes, as eight hexadecimal digits."""
    found = 0
    block = memoryview(bytearray(_BLOCK_BYTES))
    with file.open("rb", buffering=0) as source:
        while count := source.readinto(block):
            found = zlib.crc32(block[:count], found)
    return f"{found:08x}"


def read_checksums(folder: Path) -> dict[str, str]:
    """Checksums by file name, as saved; raises CheckpointError without a well-formed list."""
    file = folder / CHECKSUMS_NAME
    if not file.exists():
        raise CheckpointError(f"no {file.name}; a checkpoint of an earlier meshtune has none")
    found = read_json(file)
    names_only = isinstance(found, dict) and all(
        isinstance(value, str) and Path(name).name == name for name, value in found.items()
    )
    if not names_only:
        raise CheckpointError(f"{file.name}: accepted checksums by names of files")
    return dict(found)


def read_json(file: Path) -> Any:
    """Content of a JSON file of at most ``MAX_BYTES``; raises CheckpointError without one."""
    try:
        return parse_json(read_bytes(file, MAX_BYTES), file.name)
    except FileError as error:  # the caller names the folder
        raise CheckpointError(str(error).replace(shown(file), file.name)) from None


def verify(folder: Path, checksums: dict[str, str], names: Iterable[str]) -> None:
    """Raise CheckpointError for a file that is not as it was, OSError for an unreadable one."""
    for name in names:
        if not (folder / name).is_file():
            raise CheckpointError(f"{name}: there is no such file")
        if (found := checksum(folder / name)) != checksums[name]:
            raise CheckpointError(
                f"{name} is damaged: its CRC-32 is {found}, and was {checksums[name]} "
                "when it was saved"
            )


class SafeReader(FileSystemReader):
    """Reads the table of contents, a pickle of torch's, without running what it names.

    The tensors themselves torch reads with ``weights_only``.
    """

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with (Path(self.path) / TABLE_NAME).open("rb") as file:
            metadata = _TableUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f"{TABLE_NAME} is no table of contents")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _TableUnpickler(pickle.Unpickler):
    """Loads only the records that a table of contents consists of."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member  # so Python 3.11.0 to 3.11.3 write a member of an enumeration
        if name not in _RECORDS.get(module, ()):
            raise pickle.UnpicklingError(f"{TABLE_NAME} names {module}.{name}: not loaded")
        return super().find_class(module, name)


def _member(of: object, name: str) -> Enum:
    if not (isinstance(of, type) and issubclass(of, Enum)):
        raise pickle.UnpicklingError(f"{TABLE_NAME} asks for {name} of {of}: not loaded")
    return of[name]


_RECORDS = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorStorageMetadata",
        "TensorProperties",
        "ChunkStorageMetadata",
        "BytesStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"} | {name for name, v in vars(torch).items() if isinstance(v, torch.dtype)},
    "pathlib": {"PosixPath"},
    "pathlib._local": {"PosixPath"},
}
