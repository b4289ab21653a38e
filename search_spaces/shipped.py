"""Records that a space names: shipped with meshtune, or files beside the space."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from foundation.documents import Document, Where, as_written, document_of, read_document
from foundation.messages import nearest
from foundation.records import validate
from search_spaces.errors import SpaceError

SHIPPED = Path(__file__).parent
_KNOWN = {"adapter": "command", "framework": "habits"}  # and the section of its record
Record = TypeVar("Record", bound=BaseModel)


def shipped_records(kind: str) -> dict[str, str]:
    """Sorted names of what comes with meshtune, each with a title.

    ``kind``: ``space``, ``model``, ``cluster``, ``adapter`` or ``framework``.
    """
    titles = {name: _title(file) for name, file in shipped_files(kind).items()}
    titles |= {name: title for name, (title, _) in _members(kind).items()}
    return dict(sorted(titles.items()))


def shipped_files(kind: str) -> dict[str, Path]:
    """The shipped files of a kind, by sorted name."""
    if kind in _KNOWN:
        return {name: known_file(name) for name in known_trainers(_KNOWN[kind])}
    folder = SHIPPED if kind == "space" else SHIPPED / f"{kind}s"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


@cache
def _members(kind: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Titles and contents, by name, of records that share a file.

    A member's title is its name unless it has one; the file's other keys belong to all members.
    """
    found = {}
    for file in (SHIPPED / f"{kind}_families").glob("*.yaml"):
        common = read_document(file).root.plain()
        for name, own in common.pop("members").items():
            found[name] = own.pop("title", own["name"]), {**own, **common}
    return found


@cache
def known_trainers(section: str) -> tuple[str, ...]:
    """Sorted names of known trainers that have a section: ``command``, ``log`` or ``habits``."""
    begins = re.compile(f"^{section}:", re.MULTILINE)
    files = known_file("*").parent.glob("*.yaml")
    return tuple(sorted(file.stem for file in files if begins.search(file.read_text())))


def known_file(name: str) -> Path:
    """The file of a known trainer's record."""
    return SHIPPED / "known_trainers" / f"{name}.yaml"


def _title(file: Path) -> str:
    """A file's ``description``, or the first line of its comment."""
    lines = file.read_text().splitlines()
    described = [line for line in lines if line.startswith("description: ")]
    if described:
        return described[0].partition(": ")[2].strip("'\"")
    return lines[0].removeprefix("#").strip().removesuffix(".")


def named(record: type[Record], path: Where, value: str, document: Document) -> Record:
    """The record that a key of a document names; the last part of its path is the kind."""
    folder = Path(document.name).parent
    with document.errors_at(path):
        return read_named(record, str(path[-1]), value, folder, others="a record, ")


def read_named(
    record: type[Record],
    kind: str,
    value: str,
    folder: Path = Path(),
    read_json: Callable[[Path], Record] | None = None,
    others: str = "",
) -> Record:
    """A record by its shipped name, or by a file relative to ``folder``.

    A file ``*.json`` is accepted with ``read_json``; error messages add ``others`` to the list.

    Raises SpaceError that begins with ``found``; the caller adds the place.
    """
    endings = (".yaml", ".yml", *((".json",) if read_json else ()))
    members = _members(kind)
    if value in members:
        return validate(record, document_of(members[value][1], value, SpaceError))
    if value.endswith(endings):
        file = folder / value
    else:
        files = "*.yaml or *.json" if read_json else "*.yaml"
        shipped = shipped_files(kind)
        if value not in shipped:
            names = sorted({*shipped, *members})
            raise SpaceError(
                f"found {as_written(value)}, accepted a file ({files}), {others}or one of "
                f"{', '.join(names)}{nearest(value, names)}"
            )
        file = shipped[value]
    try:
        if read_json is not None and file.suffix == ".json":
            return read_json(file)
        return validate(record, read_document(file, SpaceError))
    except SpaceError as error:
        raise SpaceError(f"found {as_written(value)}:\n{error}") from None
