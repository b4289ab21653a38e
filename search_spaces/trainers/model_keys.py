"""The model's record in a well-known trainer's own words, read and written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from foundation.documents import as_written, plain_scalar
from foundation.values import Scalar
from search_spaces.errors import SpaceError
from search_spaces.language.adapter_schema import ModelKey
from search_spaces.language.model import ModelShape
from search_spaces.language.schema import ModelFile
from search_spaces.trainers import config_files, templates
from trainer.plan.model import ModelConfig


def read(
    keys: Mapping[str, ModelKey], told: Mapping[str, Any], known: ModelConfig | None = None
) -> ModelConfig | None:
    """The model that a trainer is told; None unless it is told all that the record needs.

    Args:
        keys: of the trainer, by field of the record.
        told: its options, or its file's values by dotted path.
        known: the model that it names, whose sequence length alone it may be told besides.

    Raises:
        SpaceError: for values that make no model, or that cannot be read.
    """
    record = ModelFile if known is None else type(known)
    fields: dict[str, Any] = {} if known is None else known.model_dump(exclude_unset=True)
    for name, key in keys.items():
        if known is not None and name != "seq_length":
            continue
        if told.get(key.key) is not None:
            fields[name] = _read(name, key, told[key.key], fields)
            if fields[name] is None:
                raise SpaceError(
                    f"{key.key} {as_written(told[key.key])} cannot be read: name the space's model"
                )
    for name, key in keys.items():
        value = implied(key, told)
        if known is None and name not in fields and value is not None:
            fields[name] = value
    for name, key in keys.items():
        if known is None and name not in fields and (value := _default(key, fields)) is not None:
            fields[name] = value
    needed = [name for name, field in ModelConfig.model_fields.items() if field.is_required()]
    if not all(name in fields for name in needed):
        return None
    try:
        model = record(**fields)
        return model.config() if isinstance(model, ModelFile) else model
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise SpaceError(f"the model that it is told: {where} {problem['msg']}".strip()) from None


def contradiction(keys: Mapping[str, ModelKey], told: Mapping[str, Any], model: ModelConfig) -> str:
    """What a trainer is told of another model than the space's; empty if nothing is."""
    for name, key in keys.items():
        here = _fields(model).get(name)
        if not key.key:
            if here != key.default:
                return f"a trainer of {name} {key.default} alone, the space's model has {here}"
            continue
        if told.get(key.key) is None:
            continue
        there = _read(name, key, told[key.key], _fields(model))
        if there is not None and there != here:
            return f"{key.key} {as_written(told[key.key])}, the space's model has {name} {here}"
    return ""


def written(
    keys: Mapping[str, ModelKey], model: ModelConfig, told: Mapping[str, Any]
) -> dict[str, Any]:
    """What a trainer has to be told of a model beyond what it is told."""
    fields = _fields(model)
    given = model.model_dump()
    options: dict[str, Any] = {}
    for name, key in keys.items():
        default = _default(key, fields)
        # What the record leaves open is told where the trainer would take something else.
        value = given.get(name) if default is None else fields.get(name)
        if value is None or not key.key or key.key in told or value == default:
            continue
        text = _text(value)
        if text in key.values:
            options[key.key] = key.values[text]
        else:
            template = _case(key.text, fields)
            options[key.key] = value if template is None else templates.value(template, fields)
        also = {name: each for name, each in key.also.items() if name not in told}
        options |= config_files.filled(also, fields)
    return options


def unwritten(keys: Mapping[str, ModelKey], model: ModelConfig) -> list[str]:
    """Fields of a model that differ from their default and that a trainer is not told."""
    changed = model.model_dump(exclude_defaults=True, exclude_none=True)
    return [name for name in changed if name not in keys]


def names(model: ModelConfig | None) -> frozenset[str]:
    """Of the facts that expressions can use of a model."""
    if model is None:
        return frozenset()
    resolved = ("num_kv_heads", "ffn_hidden_size", "num_parameters")
    return frozenset((*model.model_dump(exclude_none=True), *resolved))


def implied(key: ModelKey, told: Mapping[str, Any]) -> Scalar | None:
    """A field's value by other options than its own; None if these do not say it."""
    for option, values in key.implied.items():
        if told.get(option) is not None:
            found = values.get(str(told[option]), values.get("*"))
            if found is not None:
                return found
    return None


def _read(name: str, key: ModelKey, value: Any, fields: Mapping[str, Scalar]) -> Any:
    """A field of the record, from what a trainer is told; None if that does not say it."""
    for here, there in key.values.items():
        if there == value and isinstance(there, bool) == isinstance(value, bool):
            return plain_scalar(here)
    if key.text is None:
        return value
    template = _case(key.text, fields)
    found = _pattern(name, template).fullmatch(str(value)) if template is not None else None
    return plain_scalar(found["value"]) if found and "value" in found.re.groupindex else None


def _pattern(name: str, template: str) -> re.Pattern[str]:
    """What a template's texts look like, with the field itself as the group ``value``."""
    pieces = re.split(r"(\{[^{}]*\})", template)
    seen = False
    for index in range(1, len(pieces), 2):
        is_field = pieces[index].strip("{} ") == name and not seen
        seen = seen or is_field
        pieces[index] = r"(?P<value>[\w.]+)" if is_field else r"[\w.]+"
    for index in range(0, len(pieces), 2):
        pieces[index] = re.escape(pieces[index])
    return re.compile("".join(pieces))


def _default(key: ModelKey, fields: Mapping[str, Scalar]) -> Any:
    """What a field is where the trainer is told nothing of it."""
    value = _case(key.default, fields)
    if isinstance(key.default, Mapping) and isinstance(value, str):
        return templates.value(value, fields) if templates.names(value) <= fields.keys() else None
    return value


def _case(cases: Any, fields: Mapping[str, Scalar]) -> Any:
    """The value of the first expression that holds; a value without one is as it is."""
    if not isinstance(cases, Mapping):
        return cases
    for when, value in cases.items():
        if templates.names("{" + when + "}") <= fields.keys() and templates.holds(when, fields):
            return value
    return None


def _fields(model: ModelConfig) -> dict[str, Scalar]:
    """A model's fields, with what those that are left out come to."""
    shape = ModelShape(**model.model_dump())
    resolved = {"num_kv_heads": model.kv_heads, "ffn_hidden_size": model.ffn_size}
    return {**shape.model_dump(exclude_none=True), **resolved}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
