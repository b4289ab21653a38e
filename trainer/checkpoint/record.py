"""``training.json`` of a checkpoint: all that is the same on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from foundation.records import Record as StrictRecord
from trainer.checkpoint.integrity import CheckpointError, read_json
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError

RECORD_NAME = "training.json"
_SHOWN = 100  # characters of a wrong value


class Record(StrictRecord):
    """The content of ``training.json``; anything unexpected in it is an error."""

    step: int = Field(ge=1)
    samples: int | None = Field(default=None, ge=0)
    """Samples read so far; None in a checkpoint of a version that did not count them."""
    updates: int = Field(ge=0)
    loss_scale: float | None = Field(gt=0)
    good_steps: int = Field(ge=0)
    seed: int
    model: dict[str, Any]


def read_record(folder: Path) -> Record:
    """Read a checkpoint's record.

    Raises:
        CheckpointError: if there is none, or it is wrong; the message names key and value.
    """
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
    """Check that a checkpoint has this run's model and seed.

    Raises:
        ConfigError: if it is not; the message names the fields and both values.
    """
    here = identity(config)
    pairs: list[tuple[str, Any, Any]] = [("seed", record.seed, here["seed"])]
    # A key that an older version did not write had no other value than its default.
    before = {key: field.default for key, field in type(config.model).model_fields.items()}
    there = before | record.model
    pairs += [(f"model.{key}", there[key], own) for key, own in here["model"].items()]
    wrong = [
        f"{key} is {there} there and {ours} here" for key, there, ours in pairs if there != ours
    ]
    if wrong:
        raise ConfigError(f"load: {path} is of another model: {'; '.join(wrong)}")
