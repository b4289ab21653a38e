"""YAML with positions: a small tree whose every value knows its line and column.

Built from the parser's events rather than with ``yaml.load``, because a mistake found later (a
wrong type, an unknown name in a constraint) is to be reported where it stands in the file, and
because size, depth and aliases have to be bounded while reading.

Plain scalars follow YAML 1.2: ``on``, ``yes`` and ``12:30`` are text, ``1e-3`` is a number.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 1_000_000
MAX_DEPTH = 16
MAX_NODES = 50_000  # aliases counted as often as they are used

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}

Where = Sequence[str | int]


class SpaceError(Exception):
    """The input is wrong; the message is complete and names the remedy."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Node:
    """A value and where it stands. Mappings keep the place of each key as well."""

    value: Any  # a scalar, list[Node], or dict[str, tuple[Mark, Node]]
    mark: Mark
    size: int = 1  # nodes in this subtree

    def plain(self) -> Any:
        """The value without positions."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, (_, child) in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value


@dataclass(frozen=True)
class Document:
    """One file, or the part of one below ``prefix``, that can say where something in it is."""

    name: str
    root: Node
    prefix: tuple[str | int, ...] = ()

    def at(self, *path: str | int) -> Document:
        """The same file seen from the value at ``path``."""
        return Document(self.name, self.locate(path)[1], (*self.prefix, *path))

    def locate(self, path: Where) -> tuple[Mark, Node]:
        """The place of the key (or item) at ``path`` and its value; the nearest one above it
        where the path does not exist.
        """
        mark, node = self.root.mark, self.root
        for step in path:
            if isinstance(node.value, dict) and step in node.value:
                mark, node = node.value[step]
            elif isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                mark = node.mark
        return mark, node

    def error(self, path: Where, what: str, *, at_value: bool = False) -> SpaceError:
        """``file:line:column: key 'a.b': what``, at the key or at its value."""
        mark, node = self.locate(path)
        key = dotted((*self.prefix, *path))
        where = node.mark if at_value else mark
        subject = f"key '{key}': " if key else ""
        return SpaceError(f"{self.name}:{where.line}:{where.column}: {subject}{what}")


def dotted(path: Iterable[str | int]) -> str:
    """``('parameters', 'tp', 2)`` as ``parameters.tp[2]``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f"{'.' if text else ''}{printable(step)}"
    return text


def printable(text: str, limit: int = 60) -> str:
    """Text from a file, fit for one line of a terminal."""
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def shown(value: Any, limit: int = 60) -> str:
    """A value as the user wrote it, shortened."""
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, (list, tuple)) and not value:
        return "an empty list"
    if value is None:
        return "nothing"
    return printable(str(value).lower() if isinstance(value, bool) else repr(value), limit)


def read(path: Path) -> Document:
    """Read a YAML file; raises SpaceError for anything that is not one small YAML document."""
    return parse(_text(path), str(path))


def scalar(text: str) -> Any:
    """The value of a plain (unquoted) scalar, by YAML 1.2's core schema."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) <= 400 and _INTEGER.fullmatch(text):
        return int(text)
    if len(text) <= 400 and _FLOAT.fullmatch(text):
        return float(text)
    return text


def parse(text: str, name: str) -> Document:
    """Parse one YAML document; raises SpaceError with the place of the mistake."""
    try:
        root = _Builder(name).build(yaml.parse(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        raise SpaceError(_syntax(error, text, name)) from None
    return Document(name, root)


def _text(path: Path) -> str:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            frozen = path / "space.yaml"
            hint = f"; this run's space is {frozen}" if frozen.is_file() else ""
            raise SpaceError(f"{path}: found a directory, accepted a YAML file{hint}")
        if not stat.S_ISREG(status.st_mode):
            raise SpaceError(f"{path}: found a device or pipe, accepted a YAML file")
        if status.st_size > MAX_BYTES:
            raise SpaceError(
                f"{path}: found {status.st_size:,} bytes, accepted at most {MAX_BYTES:,}"
            )
        data = path.read_bytes()
    except OSError as error:
        raise SpaceError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a NUL in the name
        raise SpaceError(f"{str(path)!r}: not a file name: {error}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SpaceError(
            f"{path}:{line}: found byte 0x{data[error.start]:02x} at offset {error.start}, "
            "accepted UTF-8 text; save the file as UTF-8"
        ) from None


def _syntax(error: yaml.YAMLError, text: str, name: str) -> str:
    """One line for what the YAML parser could not read."""
    if not isinstance(error, yaml.MarkedYAMLError):
        first = str(error).splitlines()[0] if str(error) else "unreadable"
        return f"{name}: not YAML text: {first}"
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "unreadable"
    if mark is None:
        return f"{name}: not YAML: {problem}"
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    indent = line[: len(line) - len(line.lstrip())]
    hint = "; indent with spaces, not tabs" if "\t" in indent or "tab" in problem else ""
    return f"{name}:{mark.line + 1}:{mark.column + 1}: not YAML: {problem}{hint}"


class _Builder:
    """Folds parser events into nodes; bounded in depth and in nodes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.anchors: dict[str, Node] = {}
        self.nodes = 0

    def build(self, events: Iterator[Any]) -> Node:
        root: Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise self._error(event, "found a second document, accepted one")
                root = self._node(next(events), events, 0)
        if root is None:
            raise SpaceError(f"{self.name}:1:1: found an empty file, accepted a mapping of keys")
        return root

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise self._error(event, f"alias '*{event.anchor}' names no finished anchor")
            return self._count(event, self.anchors[event.anchor])
        if event.tag is not None:
            raise self._error(
                event, f"found the YAML tag {event.tag!r}, accepted plain values without tags"
            )
        if depth > MAX_DEPTH:
            raise self._error(event, f"nested deeper than {MAX_DEPTH} levels")
        mark = _mark(event)
        if isinstance(event, yaml.ScalarEvent):
            node = Node(scalar(event.value) if event.implicit[0] else event.value, mark)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(mark, events, depth)
        else:
            node = self._mapping(mark, events, depth)
        if event.anchor:
            self.anchors[event.anchor] = node
        return self._count(event, node) if node.size == 1 else node

    def _sequence(self, mark: Mark, events: Iterator[Any], depth: int) -> Node:
        items: list[Node] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(self._node(event, events, depth + 1))
        return Node(items, mark, 1 + sum(item.size for item in items))

    def _mapping(self, mark: Mark, events: Iterator[Any], depth: int) -> Node:
        items: dict[str, tuple[Mark, Node]] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise self._error(event, "found a key that is not text, accepted plain names")
            key = event.value
            if key == "<<" and event.implicit[0]:
                raise self._error(event, "merge keys ('<<') are not accepted; write the keys out")
            if key in items:
                first = items[key][0]
                raise self._error(
                    event, f"key {key!r}: found twice, first on line {first.line}; accepted once"
                )
            items[key] = (_mark(event), self._node(next(events), events, depth + 1))
        return Node(items, mark, 1 + sum(child.size for _, child in items.values()))

    def _count(self, event: Any, node: Node) -> Node:
        self.nodes += node.size
        if self.nodes > MAX_NODES:
            raise self._error(event, f"more than {MAX_NODES:,} values (aliases count each time)")
        return node

    def _error(self, event: Any, what: str) -> SpaceError:
        mark = _mark(event)
        return SpaceError(f"{self.name}:{mark.line}:{mark.column}: {what}")


def _mark(event: Any) -> Mark:
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)
