"""A folder of checkpoints, each complete or absent: one file system's operations, by one rank."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from pathlib import Path
from typing import Any

from foundation.writing import sync_folder, write_atomically
from trainer.checkpoint.integrity import CHECKSUMS_NAME, checksum
from trainer.checkpoint.record import RECORD_NAME, Record

_COMPLETE = re.compile(r"step-(\d{8,})")
_PARTIAL = ".partial"
_DAMAGED = ".damaged"


def complete(folder: Path) -> dict[int, Path]:
    """Complete checkpoints in a folder by their finished steps, in their order."""
    found = [(_COMPLETE.fullmatch(path.name), path) for path in folder.iterdir()]
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def begin(final: Path) -> Path:
    """A new folder to write into, once the room that broken attempts took is free."""
    remove_partial(final.parent)
    draft = _partial(final)
    draft.mkdir()
    return draft


def finish(draft: Path, final: Path, record: Record, checksums: dict[str, str], keep: int) -> None:
    """Make a checkpoint complete, whose tensors are on disk; of all, the latest ``keep`` stay."""
    _write_json(draft / RECORD_NAME, record.model_dump())
    others = {file.name: checksum(file) for file in draft.iterdir() if file.name not in checksums}
    _write_json(draft / CHECKSUMS_NAME, dict(sorted((checksums | others).items())))
    sync_folder(draft)
    draft.rename(final)
    sync_folder(final.parent)
    for old in list(complete(final.parent).values())[:-keep]:
        old.rename(_partial(old))  # never half a checkpoint under a complete one's name
    remove_partial(final.parent)


def _write_json(path: Path, content: Any) -> None:
    write_atomically(path, json.dumps(content, indent=1), sync=True)


def _partial(final: Path) -> Path:
    return final.with_name(f"{final.name}.{uuid.uuid4().hex[:8]}{_PARTIAL}")


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint, so that it no longer counts and can be looked into."""
    other = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{_DAMAGED}")
    path.rename(other)
    sync_folder(path.parent)
    return other


def remove_partial(folder: Path) -> None:
    for path in folder.glob(f"step-*{_PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)
