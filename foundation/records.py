"""Typed records of documents; each error has its line, key, value, and what is accepted."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
import types
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    GetJsonSchemaHandler,
    Tag,
    ValidationError,
)
from pydantic_core.core_schema import CoreSchema, literal_schema

from foundation.documents import Document, Mark, as_written, read_document
from foundation.messages import closest, nearest, shown

R = TypeVar("R", bound=BaseModel)
Name = TypeVar("Name")
One = TypeVar("One")
Several = TypeVar("Several")

_ACCEPTED: dict[str, str] = read_document(Path(__file__).with_suffix(".yaml")).root.plain()
_MAX_REPORTED = 7
_MAX_SHOWN = 100
_YAML_1_1 = {"no": "false", "off": "false", "yes": "true", "on": "true"}  # booleans before 1.2
_UNION_TAG = re.compile(r"<[a-z0-9]+>")  # our names for the members of a union, not keys


class Record(BaseModel):
    """A strict record: an unknown key is a mistake, never ignored, and ``true`` is no number."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=()
    )


class Described(Record):
    """A record whose fields are described by the strings below them, read on demand.

    ``_described_in`` has other classes that describe fields of the same names.
    """

    _described_in: ClassVar[tuple[type, ...]] = ()

    @classmethod
    def descriptions(cls) -> dict[str, str]:
        """The description of each field on one line, if its source is there; slow to read."""
        found = {n: f.description for n, f in cls.model_fields.items() if f.description}
        for each in (*cls.__mro__[: cls.__mro__.index(Described)], *cls._described_in):
            with suppress(OSError, SyntaxError):  # the source may be gone, or another version's
                source = textwrap.dedent(inspect.getsource(each))
                body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
                for field, text in itertools.pairwise(body):
                    match field, text:
                        case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(said))):
                            found.setdefault(name, " ".join(said.split()))
        return {name: said for name, said in found.items() if name in cls.model_fields}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        fields = handler.resolve_ref_schema(schema).get("properties", {})
        for name, said in cls.descriptions().items():
            fields[cls.model_fields[name].alias or name]["description"] = said
        return schema


def inline(value: Any) -> str:
    """Tag of a value that is a name, or a record written in its place."""
    return "<inline>" if isinstance(value, (dict, BaseModel)) else "<name>"


def _several(value: Any) -> str:
    return "<several>" if isinstance(value, (list, tuple)) else "<one>"


class OneOf:
    """Annotation of a text that is one of some names, which only the running program knows."""

    def __init__(self, names: Iterable[str]) -> None:
        self._schema = literal_schema([*names])

    def __get_pydantic_core_schema__(self, *_: Any) -> CoreSchema:
        return self._schema


# Unions that report only the errors of the member that was meant.
Named = Annotated[
    Annotated[Name, Tag("<name>")] | Annotated[One, Tag("<inline>")], Discriminator(inline)
]
OneOrSeveral = Annotated[
    Annotated[One, Tag("<one>")] | Annotated[Several, Tag("<several>")], Discriminator(_several)
]


def validate(record: type[R], document: Document, context: object = None) -> R:
    """The document as a record; raises its ``mistake``, a line for each of the first errors.

    Validators of the record's fields are given the ``context``.
    """
    if not isinstance(document.root.value, dict):
        raise document.error(
            (), f"found {as_written(document.root.plain())}, accepted a mapping of keys"
        )
    try:
        return record.model_validate(document.root.plain(), strict=True, context=context)
    except ValidationError as error:
        found = error.errors(include_url=False)
    placed = [_placed(record, document, mistake) for mistake in _without_echoes(record, found)]
    messages = [str(error) for _, error in sorted(placed, key=lambda p: (p[0].line, p[0].column))]
    if len(messages) > _MAX_REPORTED:
        messages[_MAX_REPORTED:] = [f"and {len(messages) - _MAX_REPORTED} more"]
    raise document.mistake("\n".join(messages))


def mistakes(error: ValidationError) -> str:
    """The first of pydantic's errors on one line, for a file without positions."""
    found = []
    for each in error.errors(include_url=False):
        where = shown(".".join(map(str, each["loc"])), _MAX_SHOWN) or "config"
        what = each["msg"].removeprefix("Value error, ")
        if each["type"] != "value_error" or not isinstance(each["input"], Mapping):
            what += f" (found {shown(repr(each['input']), _MAX_SHOWN)})"
        found.append(f"{where}: {what}")
    more = [f"and {len(found) - _MAX_REPORTED} more"] if len(found) > _MAX_REPORTED else []
    return "; ".join([*found[:_MAX_REPORTED], *more])


def _without_echoes(
    record: type[BaseModel], mistakes: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Find which keys misspelt ones mean, missing ones first, and leave out those missing ones."""
    missing = [m["loc"] for m in mistakes if m["type"] == "missing"]
    told, meant = [], set()
    for mistake in mistakes:
        if mistake["type"] == "extra_forbidden":
            *above, name = mistake["loc"]
            lost = [key for *place, key in missing if place == above]
            near = closest(str(name), lost) or closest(str(name), _fields(record, above))
            meant.add((*above, near))
            mistake = {**mistake, "hint": f"; did you mean '{near}'?" if near else ""}
        told.append(mistake)
    return [m for m in told if m["type"] != "missing" or m["loc"] not in meant]


def _placed(
    record: type[BaseModel], document: Document, mistake: Mapping[str, Any]
) -> tuple[Mark, Exception]:
    path = [step for step in mistake["loc"] if not _UNION_TAG.fullmatch(str(step))]
    if mistake["type"] in ("extra_forbidden", "missing") and path[-1:] != [mistake["loc"][-1]]:
        path.append(mistake["loc"][-1])
    if path and path[-1] == "[key]":
        path.pop()
        what = "not a name, accepted letters, digits and '_'"
    elif mistake["type"] == "extra_forbidden":
        fields = _fields(record, mistake["loc"][:-1])
        what = f"unknown key, accepted: {', '.join(fields)}{mistake['hint']}"
        if len(path) > 1 and path[-1] in _fields(record, ()):
            what += f"; '{path[-1]}' is a key of the file itself, beside '{path[0]}'"
    elif mistake["type"] == "missing":
        what = f"key '{path.pop()}' is missing"
    else:
        what = wrong_value(mistake)
        if mistake["type"] == "model_type" and (fields := _fields(record, mistake["loc"])):
            what = what.replace("a mapping of keys", f"a mapping of keys: {', '.join(fields)}")
        return document.locate(path)[1].mark, document.wrong(path, what)
    return document.locate(path)[0], document.error(path, what)


def wrong_value(mistake: Mapping[str, Any]) -> str:
    """``found X, accepted Y`` for a value that is wrong in itself."""
    kind, value, context = mistake["type"], mistake["input"], mistake.get("ctx", {})
    if kind == "value_error":
        whole = isinstance(value, Mapping | BaseModel)  # the message names what is in it
        return str(context["error"]) if whole else f"found {as_written(value)}: {context['error']}"
    if kind == "literal_error":
        expected = context["expected"]
        known = expected.replace(" or ", ", ").replace("'", "").split(", ")
        hint = nearest(value, known) if isinstance(value, str) else ""
        return f"found {as_written(value)}, accepted {expected}{hint}"
    if kind == "string_pattern_mismatch":
        return f"found {as_written(value)}, accepted letters, digits, '.', '_' and '-'"
    if kind not in _ACCEPTED:
        return f"found {as_written(value)}: {mistake['msg']}"
    accepted = _ACCEPTED[kind].format(**context)
    if kind in ("too_short", "too_long"):
        accepted += " item" if accepted.endswith(" 1") else " items"
    if kind == "string_type" and isinstance(value, int | float):
        accepted += "; put text in quotes"
    if kind in ("bool_type", "model_type") and (meant := _YAML_1_1.get(str(value).lower())):
        accepted += f"; that is text, the boolean is {meant}"
    return f"found {as_written(value)}, accepted {accepted}"


def _fields(record: type[BaseModel], steps: Sequence[str | int]) -> list[str]:
    """The keys that the record at ``steps`` accepts."""
    current: Any = record
    for step in steps:
        if isinstance(current, type) and issubclass(current, BaseModel):
            by_key = {(f.alias or n): f.annotation for n, f in current.model_fields.items()}
            current = by_key.get(str(step))
        elif get_origin(current) in (dict, list):
            current = get_args(current)[-1]
        current = _member(current, step)
    if isinstance(current, type) and issubclass(current, BaseModel):
        return [field.alias or name for name, field in current.model_fields.items()]
    return []


def _member(annotation: Any, step: str | int) -> Any:
    """The member of a union or annotation to which ``step``, its tag or key, belongs."""
    while hasattr(annotation, "__metadata__"):
        annotation = annotation.__origin__
    if get_origin(annotation) in (Union, types.UnionType):
        members = [m for m in get_args(annotation) if m is not type(None)]
        for member in members:
            tags = [getattr(m, "tag", None) for m in getattr(member, "__metadata__", ())]
            if step in tags:
                return _member(member, step)
        if len(members) == 1:
            return _member(members[0], step)
    return annotation
