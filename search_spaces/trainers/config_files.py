"""Configuration files of a user's trainer: a base, with the values of a trial set in it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from foundation.documents import Document, Where, read_document
from foundation.files import TOO_DEEP, FileError, parse_json, read_text
from foundation.values import Scalar
from search_spaces.errors import SpaceError
from search_spaces.language.trainer_schema import ConfigFile
from search_spaces.trainers import templates

MAX_BYTES = 1_000_000
SUFFIXES = (".json", ".yaml", ".yml", ".toml")
_OURS = {"config.json", "trial.json", "result.json", "command.txt", "stdout.log", "stderr.log"}


def wrong_file_name(name: str) -> str | None:
    """The mistake in the name of a file of a trial's folder; None if there is none."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not name.isprintable():
        return "accepted a name inside the trial's folder"
    if path.suffix not in SUFFIXES:
        return f"accepted a name that ends with one of {', '.join(SUFFIXES)}"
    if name in _OURS:
        return f"accepted a name other than {', '.join(sorted(_OURS))}, which meshtune writes"
    return None


def read_base(document: Document, key: Where, name: str) -> dict[str, Any]:
    """The content of the file that a key of a document names, in the format of its suffix.

    Raises SpaceError at the key if it cannot be read, or is not a mapping of keys.
    """
    try:
        return _content(Path(document.name).parent / name)
    except SpaceError as error:
        raise document.wrong(key, f"\n{error}") from None


def _content(path: Path) -> dict[str, Any]:
    try:
        if path.suffix == ".json":
            content = parse_json(read_text(path, MAX_BYTES), str(path))
        elif path.suffix == ".toml":
            content = _toml(path)
        else:
            content = read_document(path, SpaceError).root.plain()
    except FileError as error:
        raise SpaceError(str(error)) from None
    except tomllib.TOMLDecodeError as error:
        raise SpaceError(f"{path}: not TOML: {error}") from None
    if not isinstance(content, dict):
        raise SpaceError(f"{path}: found {type(content).__name__}, accepted a mapping of keys")
    try:
        json.dumps(content, allow_nan=False)
    except (TypeError, ValueError):
        raise SpaceError(
            f"{path}: holds a date, nan or infinity; accepted text, numbers, true and false, lists "
            "and mappings: write it as text"
        ) from None
    return content


def _toml(path: Path) -> dict[str, Any]:
    text = read_text(path, MAX_BYTES)
    try:
        content = tomllib.loads(text)
        # The depth that JSON may have; a date is refused by the caller.
        parse_json(json.dumps(content, default=str), str(path))
    except RecursionError:
        raise FileError(f"{path}: {TOO_DEEP}") from None
    return content


def without(content: dict[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """A copy of a file's content without these dotted paths."""
    content = deepcopy(content)
    for path in paths:
        *parents, last = path.split(".")
        place: Any = content
        for part in parents:
            place = place.get(part) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place.pop(last, None)
    return content


def check_paths(name: str, file: ConfigFile) -> None:
    """Raise SpaceError if a path that a file sets leads through a value of its base."""
    content = deepcopy(file.content or {})
    for paths in file.settings:
        for path in paths:
            _set(content, path, None, name)


def texts(value: Any) -> Iterator[str]:
    """Every text in a value that a file sets: the templates."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from texts(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from texts(each)


def filled(value: Any, values: Mapping[str, Scalar]) -> Any:
    """A value with every template in it filled; see ``templates.value``."""
    if isinstance(value, str):
        return templates.value(value, values)
    if isinstance(value, Mapping):
        return {key: filled(each, values) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [filled(each, values) for each in value]
    return value


def rendered(name: str, file: ConfigFile, values: Mapping[str, Scalar]) -> str:
    """A file's text for one trial, in the format of its suffix.

    A part of a dotted path that is a whole number is the index of a list's item.

    Raises SpaceError if a path leads through something that has no parts, and what
    ``templates.filled`` raises.
    """
    content = deepcopy(file.content or {})
    cases = [case.set for case in file.cases if templates.holds(case.when, values)]
    for settings in (file.set, *cases):
        for path, value in settings.items():
            _set(content, path, filled(value, values), name)
    if name.endswith(".json"):
        return json.dumps(content, indent=2) + "\n"
    if name.endswith(".toml"):
        import tomli_w

        text: str = tomli_w.dumps(content)
        return text
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _set(content: Any, path: str, value: Any, name: str) -> None:
    *parents, last = path.split(".")
    place = content
    for part in parents:
        if isinstance(place, list):
            place = place[_index(place, part, path, name)]
        else:
            place = place.setdefault(part, {})
        if not isinstance(place, (dict, list)):
            raise SpaceError(
                f"trainer.files: {name}: {path}: {part} is {json.dumps(place)[:60]} in its base, "
                "which has no parts"
            )
    key = _index(place, last, path, name) if isinstance(place, list) else last
    place[key] = value


def _index(items: list[Any], part: str, path: str, name: str) -> int:
    if part.isdecimal() and int(part) < len(items):
        return int(part)
    raise SpaceError(
        f"trainer.files: {name}: {path}: {part} is no item of a list of {len(items)} in its base"
    )
