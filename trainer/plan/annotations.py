"""Annotations of fields: facts about a field besides type and default. Torch-free.

    vpp: Annotated[Layers, Counts("pp > 1", "vpp_needs_pp"), Column()] = 1

Pydantic keeps them in a field's metadata, and each reader picks its own kind.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trainer.plan.rules.expression import Scalar, ValueType

A = TypeVar("A")
Trainers = Literal["all", "builtin", "others"]


@dataclass(frozen=True)
class Column:
    """Column of the cost model's jobs that a field becomes."""

    name: str = ""  # default the field's own
    # number per value; by default words count from 0 in the order of their type
    codes: Mapping[Any, float] | None = None
    # code of any other word, or of an unset value; None: the cost model decides
    other: float | str | None = 0.0
    mixtures: bool = False  # only models with experts have it
    memory_only: bool = False  # its effect on step time is unknown


@dataclass(frozen=True)
class Counts:
    """Condition under which a field has an effect; elsewhere only its default is valid, so that a
    search never tries one job twice. Fields with the same annotation form one requirement.
    """

    where: str  # condition, in the constraint grammar
    rule: str  # name of the requirement
    # reason that a trainer gives for refusing another value; empty: it ignores the value
    why: str = ""
    trainers: Trainers = "builtin"  # trainers it applies to; others may see an effect


@dataclass(frozen=True)
class Refused:
    """A value that an engine cannot run; fields with the same annotation share one reason."""

    why: str  # the engine's reason
    rule: str = ""  # name of the space's rule, after the engine's; default the field's
    values: tuple[Scalar, ...] = ()  # refused values; default all but the field's default
    remedy: str = ""  # default to set the field's default
    engine: str = "deepspeed"


@dataclass(frozen=True)
class OtherNames:
    """Names in other frameworks, separated by spaces, without endings such as ``_size``."""

    names: str


@dataclass(frozen=True)
class Open:
    """Trainers other than the built-in one may accept values of their own."""


def of_field(field: FieldInfo, kind: type[A]) -> list[A]:
    return [annotation for annotation in field.metadata if isinstance(annotation, kind)]


def grouped(record: type[BaseModel], kind: type[A]) -> dict[A, list[str]]:
    """Annotations of one kind, each with the fields that share it."""
    found: dict[A, list[str]] = {}
    for name, field in record.model_fields.items():
        for annotation in of_field(field, kind):
            found.setdefault(annotation, []).append(name)
    return found


def codes_of(record: type[BaseModel], name: str) -> dict[str, int]:
    """Numeric codes of a field's words."""
    return numbered(record.model_fields[name].annotation) or {}


def columns(record: type[BaseModel]) -> dict[str, tuple[str, Column]]:
    """Source field and declaration of every column, by column name; codes are filled in."""
    found = {}
    for name, field in record.model_fields.items():
        for column in of_field(field, Column):
            codes = numbered(field.annotation) if column.codes is None else column.codes
            key = column.name or name
            found[key] = (name, replace(column, name=key, codes=codes))
    return found


def values_of(record: BaseModel) -> dict[str, Any]:
    """Value of every declared column, nested records included."""
    found: dict[str, Any] = {}
    for name, field in type(record).model_fields.items():
        value = getattr(record, name)
        if isinstance(value, BaseModel):
            found |= values_of(value)
        found |= {column.name or name: value for column in of_field(field, Column)}
    return found


def numbered(words: Any) -> dict[str, int] | None:
    """Codes from 0 for the words of a type, in order; None if it has none."""
    if _scalar(words) != "text" or (literal := _members(words)[0]) is str:
        return None
    return {word: number for number, word in enumerate(get_args(literal))}


def value_types(record: type[BaseModel]) -> dict[str, ValueType]:
    """Type of every scalar field of a record, as expressions see it."""
    found = {name: _scalar(field.annotation) for name, field in record.model_fields.items()}
    return {name: value_type for name, value_type in found.items() if value_type is not None}


_TYPES: dict[type, ValueType] = {bool: "boolean", int: "number", float: "number", str: "text"}


def _scalar(annotation: Any) -> ValueType | None:
    members = _members(annotation)
    kinds = {
        _TYPES.get(type(get_args(one)[0]) if get_origin(one) is Literal else one) for one in members
    }
    return kinds.pop() if len(kinds) == 1 else None


def _members(annotation: Any) -> list[Any]:
    """Members of a union except None, annotations stripped."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [m for part in get_args(annotation) for m in _members(part) if m is not type(None)]
    return [annotation]
