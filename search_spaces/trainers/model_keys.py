"""The model's record in a well-known trainer's own words, read and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from search_spaces.errors import SpaceError
from search_spaces.language.adapter_schema import ModelKey
from slurm import as_written
from trainer import ModelConfig


def read(
    keys: Mapping[str, ModelKey], told: Mapping[str, Any], known: ModelConfig | None = None
) -> ModelConfig | None:
    """The model that a trainer is told; None unless it is told all that the record needs.

    Args:
        keys: of the trainer, by field of the record.
        told: its options, or its file's values by dotted path.
        known: the model that it names, whose sequence length alone it may be told besides.

    Raises:
        SpaceError: for values that make no model.
    """
    record = ModelConfig if known is None else type(known)
    fields = {} if known is None else known.model_dump(exclude_unset=True)
    for name, key in keys.items():
        counts = known is None or (name == "seq_length" and key.key in told)
        if counts and (value := _field(key, told)) is not None:
            fields[name] = value
    needed = [name for name, field in ModelConfig.model_fields.items() if field.is_required()]
    if not all(name in fields for name in needed):
        return None
    try:
        return record(**fields)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise SpaceError(f"the model that it is told: {where} {problem['msg']}".strip()) from None


def contradiction(keys: Mapping[str, ModelKey], told: Mapping[str, Any], model: ModelConfig) -> str:
    """What a trainer is told of another model than the space's; empty if nothing is."""
    for name, key in keys.items():
        here = getattr(model, name, None)
        if not key.key:
            if here != key.default:
                return f"a trainer of {name} {key.default} alone, the space's model has {here}"
            continue
        there = _field(key, told) if key.key in told else here
        if there != here and not (here is None and there == _resolved(model, name)):
            return f"{key.key} {as_written(told[key.key])}, the space's model has {name} {here}"
    return ""


def written(
    keys: Mapping[str, ModelKey], model: ModelConfig, told: Mapping[str, Any]
) -> dict[str, Any]:
    """What a trainer has to be told of a model beyond what it is told."""
    options: dict[str, Any] = {}
    for name, key in keys.items():
        value = getattr(model, name, None)
        if value is None or not key.key or key.key in told or value == key.default:
            continue
        options[key.key] = key.values.get(_text(value), value)
        options |= {also: each for also, each in key.also.items() if also not in told}
    return options


def unwritten(keys: Mapping[str, ModelKey], model: ModelConfig) -> list[str]:
    """Fields of a model that differ from their default and that a trainer is not told."""
    changed = model.model_dump(exclude_defaults=True, exclude_none=True)
    return [name for name in changed if name not in keys]


def _field(key: ModelKey, told: Mapping[str, Any]) -> Any:
    """A field of the record, from what a trainer is told."""
    value = told.get(key.key)
    if value is None:
        return key.default
    for here, there in key.values.items():
        if there == value and isinstance(there, bool) == isinstance(value, bool):
            return {"true": True, "false": False}.get(here, here)
    return value


def _resolved(model: ModelConfig, name: str) -> Any:
    """What a field that is left out comes to."""
    return {"num_kv_heads": model.kv_heads, "ffn_hidden_size": model.ffn_size}.get(name)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
