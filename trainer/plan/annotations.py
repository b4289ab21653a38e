"""Annotations of fields: what is known of a field besides its type and its default.

    vpp: Annotated[Layers, Counts("pp > 1", "vpp_needs_pp"), Column()] = 1

Pydantic keeps them in a field's metadata. Each reader picks its own kind, so that a field is
declared in one place and a reader names none. Torch-free.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trainer.plan.rules.expression import Scalar, ValueType

A = TypeVar("A")


@dataclass(frozen=True)
class Column:
    """The column of the cost model's jobs that a field becomes.

    Attributes:
        name: of the column; default the field's own.
        codes: number of each value; default: words count from 0 in the order of their type, and
            numbers and truth values stand for themselves.
        other: number of any other word, or value where nothing is said; None leaves that to the
            cost model.
        mixtures: only models with experts have it.
    """

    name: str = ""
    codes: Mapping[Any, float] | None = None
    other: float | str | None = 0.0
    mixtures: bool = False


@dataclass(frozen=True)
class Counts:
    """The condition under which a field has an effect. Elsewhere only its default is valid, so
    that a search does not try one job twice; fields that share the annotation are one requirement.

    Attributes:
        where: condition, in the constraint grammar.
        rule: name of the requirement.
        why: what a trainer says of another value, which it then refuses; empty: it ignores it.
        builtin_only: of the built-in trainer; another may see an effect.
    """

    where: str
    rule: str
    why: str = ""
    builtin_only: bool = True


@dataclass(frozen=True)
class Refused:
    """An engine cannot do what a field asks for; fields that share the annotation are one reason.

    Attributes:
        why: the engine's reason.
        rule: name of the rule of a space, behind the engine's; default the field's.
        values: that are refused; default all but the field's default.
        remedy: default the field's default.
        engine: that refuses.
    """

    why: str
    rule: str = ""
    values: tuple[Scalar, ...] = ()
    remedy: str = ""
    engine: str = "deepspeed"


@dataclass(frozen=True)
class OtherNames:
    """Names in frameworks, separated by spaces and without endings such as ``_size``."""

    names: str


@dataclass(frozen=True)
class Open:
    """Another trainer than the built-in one may have values of its own."""


def of_field(field: FieldInfo, kind: type[A]) -> list[A]:
    """A field's annotations of one kind."""
    return [annotation for annotation in field.metadata if isinstance(annotation, kind)]


def grouped(record: type[BaseModel], kind: type[A]) -> dict[A, list[str]]:
    """The annotations of one kind, each with the fields that share it."""
    found: dict[A, list[str]] = {}
    for name, field in record.model_fields.items():
        for annotation in of_field(field, kind):
            found.setdefault(annotation, []).append(name)
    return found


def codes_of(record: type[BaseModel], name: str) -> dict[str, int]:
    """The numbers that stand for a field's words."""
    return numbered(record.model_fields[name].annotation) or {}


def columns(record: type[BaseModel]) -> dict[str, tuple[str, Column]]:
    """The field and the declaration of every column, by the column's name; codes are filled in."""
    found = {}
    for name, field in record.model_fields.items():
        for column in of_field(field, Column):
            codes = numbered(field.annotation) if column.codes is None else column.codes
            key = column.name or name
            found[key] = (name, Column(key, codes, column.other, column.mixtures))
    return found


def values_of(record: BaseModel) -> dict[str, Any]:
    """The value of every column that a record declares, those of records in it included."""
    found: dict[str, Any] = {}
    for name, field in type(record).model_fields.items():
        value = getattr(record, name)
        if isinstance(value, BaseModel):
            found |= values_of(value)
        found |= {column.name or name: value for column in of_field(field, Column)}
    return found


def numbered(words: Any) -> dict[str, int] | None:
    """Numbers from 0 for the words of a type, in their order; None if it has none."""
    if _scalar(words) != "text" or (literal := _members(words)[0]) is str:
        return None
    return {word: number for number, word in enumerate(get_args(literal))}


def value_types(record: type[BaseModel]) -> dict[str, ValueType]:
    """The type of every field of a record that an expression can name: those of single values."""
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
    """The types of a union but None, without what is annotated to them."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [m for part in get_args(annotation) for m in _members(part) if m is not type(None)]
    return [annotation]
