"""A folder of checkpoints, each complete or absent, and their ``training.json``; for one rank."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from foundation.records import Record as StrictRecord
from foundation.writing import sync_folder, write_atomically
from trainer.checkpoint.integrity import CHECKSUMS_NAME, CheckpointError, checksum, read_json
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError

_COMPLETE = re.compile(r"step-(\d{8,})")
_PARTIAL = ".partial"
_DAMAGED = ".damaged"
RECORD_NAME = "training.json"
_SHOWN = 100  # characters of a wrong value


class Record(StrictRecord):
    """Content of ``training.json``: values that are the same on every rank."""

    step: int = Field(ge=1)
    samples: int | None = Field(default=None, ge=0)
    """Samples read so far; None in a checkpoint of a version that did not count them."""
    updates: int = Field(ge=0)
    loss_scale: float | None = Field(gt=0)
    good_steps: int = Field(ge=0)
    seed: int
    model: dict[str, Any]


def read_record(folder: Path) -> Record:
    """A checkpoint's record; raises CheckpointError, which names key and value, if it is wrong."""
    try:
        return Record.model_validate(read_json(folder / RECORD_NAME))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        found = repr(first["input"])[:_SHOWN]
        raise CheckpointError(f"{RECORD_NAME}: {where}: {first['msg']}, found {found}") from None


def identity(config: TrainConfig) -> dict[str, Any]:
    """Settings that a run shares with the one it resumes; all others may change."""
    model = config.model
    shape = {"num_kv_heads": model.kv_heads, "ffn_hidden_size": model.ffn_size}
    return {"seed": config.seed, "model": model.model_dump() | shape}


def check_same(record: Record, config: TrainConfig, path: Path) -> None:
    """Raise ConfigError, with fields and values, for a checkpoint of another model or seed."""
    here = identity(config)
    pairs: list[tuple[str, Any, Any]] = [("seed", record.seed, here["seed"])]
    # A key that an older version did not write had its default.
    before = {key: field.default for key, field in type(config.model).model_fields.items()}
    there = before | record.model
    pairs += [(f"model.{key}", there[key], own) for key, own in here["model"].items()]
    wrong = [
        f"{key} is {there} there and {ours} here" for key, there, ours in pairs if there != ours
    ]
    if wrong:
        raise ConfigError(f"load: {path} is of another model: {'; '.join(wrong)}")


def complete(folder: Path) -> dict[int, Path]:
    """Complete checkpoints in a folder by finished steps, in ascending order."""
    found = [(_COMPLETE.fullmatch(path.name), path) for path in folder.iterdir()]
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def begin(final: Path) -> Path:
    """A new folder to write into; removes those of broken attempts first."""
    remove_partial(final.parent)
    draft = _partial(final)
    draft.mkdir()
    return draft


def finish(draft: Path, final: Path, record: Record, checksums: dict[str, str], keep: int) -> None:
    """Complete a checkpoint whose tensors are on disk; remove all but the latest ``keep``."""
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
    """Rename a damaged checkpoint, so that it is ignored but can be inspected."""
    other = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{_DAMAGED}")
    path.rename(other)
    sync_folder(path.parent)
    return other


def remove_partial(folder: Path) -> None:
    for path in folder.glob(f"step-*{_PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)
