"""The model's record in the options of a known trainer, read and written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from foundation.documents import as_written, plain_scalar
from foundation.quantities import value_text
from foundation.values import Scalar
from search_spaces.errors import SpaceError
from search_spaces.language.adapter_schema import ModelKey
from search_spaces.language.model import ModelShape
from search_spaces.language.schema import ModelFile
from search_spaces.trainers import config_files, templates
from trainer.plan.model import ModelConfig

DEPTH = "num_layers"


def read(
    keys: Mapping[str, ModelKey], stated: Mapping[str, Any], known: ModelConfig | None = None
) -> ModelConfig | None:
    """The model that a trainer's options describe; None unless they have all that a record needs.

    ``stated`` are its options, or its file's values by dotted path; beside a ``known`` model, which
    they name, only a sequence length counts.

    Raises SpaceError for values that make no model, or that cannot be read.
    """
    record = ModelFile if known is None else type(known)
    fields: dict[str, Any] = {} if known is None else known.model_dump(exclude_unset=True)
    for name, key in keys.items():
        value = stated.get(key.key)
        if value is not None and (known is None or name == "seq_length"):
            fields[name] = _read(name, key, value, fields)
            if fields[name] is None:
                found = f"{key.key} {as_written(value)}"
                raise SpaceError(f"{found} cannot be read: name the space's model")
    if known is None:
        for name, key in keys.items():
            if name not in fields and (value := implied(key, stated)) is not None:
                fields[name] = value
        for name, key in keys.items():
            if name not in fields and (value := _default(key, fields)) is not None:
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


def contradiction(
    keys: Mapping[str, ModelKey], stated: Mapping[str, Any], model: ModelConfig
) -> str:
    """An option that describes another model than the space's; empty if none does."""
    for name, key in keys.items():
        here = _fields(model).get(name)
        if not key.key:
            if here != key.default:
                return f"a trainer of {name} {key.default} alone, the space's model has {here}"
            continue
        if stated.get(key.key) is None:
            continue
        if name == "head_size" and model.kv_lora_rank:
            continue
        there = _read(name, key, stated[key.key], _fields(model))
        if there is not None and there != here:
            return f"{key.key} {as_written(stated[key.key])}, the space's model has {name} {here}"
    return ""


def written(
    keys: Mapping[str, ModelKey], model: ModelConfig, stated: Mapping[str, Any]
) -> dict[str, Any]:
    """Options that describe a model to a trainer, without those that are stated or its defaults.

    What follows from the number of layers stays a template: a probe trains fewer of them.
    """
    fields = _fields(model)
    given = model.model_dump()
    options: dict[str, Any] = {}
    for name, key in keys.items():
        default = _default(key, fields)
        # A field that the record leaves open is written where the trainer's default differs.
        value = given.get(name) if default is None else fields.get(name)
        kept = key.key in stated and name != DEPTH
        if value is None or not key.key or kept or value == default:
            continue
        text = value_text(value)
        template = f"{{{DEPTH}}}" if name == DEPTH else _case(key.text, fields)
        if text in key.values:
            options[key.key] = key.values[text]
        elif template is None:
            options[key.key] = value
        else:
            shallower = DEPTH in templates.names(template)
            options[key.key] = template if shallower else templates.value(template, fields)
        also = {name: each for name, each in key.also.items() if name not in stated}
        options |= config_files.filled(also, fields)
    return options


def unwritten(keys: Mapping[str, ModelKey], model: ModelConfig) -> list[str]:
    """Fields of a model that differ from their default and for which a trainer has no key."""
    changed = model.model_dump(exclude_defaults=True, exclude_none=True)
    return [name for name in changed if name not in keys]


def names(model: ModelConfig | None) -> frozenset[str]:
    """Names of a model's facts that expressions can use."""
    if model is None:
        return frozenset()
    resolved = ("num_kv_heads", "ffn_hidden_size", "num_parameters")
    return frozenset((*model.model_dump(exclude_none=True), *resolved))


def implied(key: ModelKey, stated: Mapping[str, Any]) -> Scalar | None:
    """A field's value implied by other options than its own; None if none implies it."""
    for option, values in key.implied.items():
        if stated.get(option) is not None:
            found = values.get(str(stated[option]), values.get("*"))
            if found is not None:
                value: Scalar = stated[option] if found == "{stated}" else found
                return value
    return None


def _read(name: str, key: ModelKey, value: Any, fields: Mapping[str, Scalar]) -> Any:
    """A field of the record from the trainer's value; None if that cannot be read."""
    for own, there in key.values.items():
        if there == value and isinstance(there, bool) == isinstance(value, bool):
            return plain_scalar(own)
    if key.reads and isinstance(value, int) and value > 0 and DEPTH in fields:
        return templates.value(key.reads, {**fields, "stated": value})
    bare = re.sub(r"\s", "", str(value)).strip("()")  # lists have parentheses or none
    for pattern, here in key.same.items():
        if re.fullmatch(pattern, bare):
            return here
    if key.text is None:
        return value
    template = _case(key.text, fields)
    found = _pattern(name, template.strip("()")).fullmatch(bare) if template is not None else None
    return plain_scalar(found["value"]) if found and "value" in found.re.groupindex else None


def _pattern(name: str, template: str) -> re.Pattern[str]:
    """A pattern for texts of a template, with the field itself as the group ``value``."""
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
    value = _case(key.default, fields)
    if isinstance(key.default, Mapping) and isinstance(value, str):
        return templates.value(value, fields) if templates.names(value) <= fields.keys() else None
    return value


def _case(cases: Any, fields: Mapping[str, Scalar]) -> Any:
    """The value under the first expression that is true; a plain value as it is."""
    if not isinstance(cases, Mapping):
        return cases
    for when, value in cases.items():
        if templates.condition_names(when) <= fields.keys() and templates.holds(when, fields):
            return value
    return None


def _fields(model: ModelConfig) -> dict[str, Scalar]:
    """A model's fields, derived defaults included."""
    shape = ModelShape(**model.model_dump())
    resolved = {"num_kv_heads": model.kv_heads, "ffn_hidden_size": model.ffn_size}
    if not model.kv_lora_rank:  # whose heads have sizes of their own
        resolved["head_size"] = model.head_dim
    return {**shape.model_dump(exclude_none=True), **resolved}
