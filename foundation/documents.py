"""YAML with positions: a small tree whose every value knows its line and column.

Built from the parser's events rather than with ``yaml.load``, because a mistake found later (a
wrong type, an unknown name in a constraint) is to be reported where it stands in the file, and
because size, depth and aliases have to be bounded while reading.

Plain scalars follow YAML 1.2: ``on``, ``yes`` and ``12:30`` are text, ``1e-3`` is a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from foundation.files import FileError, read_text
from foundation.messages import shown

MAX_BYTES = 1_000_000
MAX_DEPTH = 16
MAX_VALUES = 50_000  # aliases counted as often as they are used

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}

Where = Sequence[str | int]


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
    depth: int = 1  # levels in it

    def plain(self) -> Any:
        if isinstance(self.value, dict):
            return {key: child.plain() for key, (_, child) in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value


@dataclass(frozen=True)
class Document:
    """The content of a file, with the line and column of everything in it."""

    name: str
    root: Node
    mistake: type[Exception] = FileError  # the class of its errors, which takes a message

    def locate(self, path: Where) -> tuple[Mark, Node]:
        """Place and value of the key or item at ``path``, or of its nearest existing parent."""
        mark, node = self.root.mark, self.root
        for step in path:
            if isinstance(node.value, dict) and step in node.value:
                mark, node = node.value[step]
            elif isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                mark = node.mark
        return mark, node

    def error(self, path: Where, what: str) -> Exception:
        """``file:line:column: key 'a.b': what``, at the key."""
        return self._error(path, self.locate(path)[0], what)

    def wrong(self, path: Where, what: str) -> Exception:
        """The same at the key's value."""
        return self._error(path, self.locate(path)[1].mark, what)

    @contextmanager
    def errors_at(self, path: Where, *kinds: type[Exception]) -> Iterator[None]:
        """Re-raise errors of these kinds (default: the document's own) with a path's place."""
        meant = kinds or (self.mistake,)
        try:
            yield
        except meant as error:
            raise self.wrong(path, str(error)) from None

    def _error(self, path: Where, mark: Mark, what: str) -> Exception:
        subject = f"key '{key}': " if (key := dotted(path)) else ""
        return self.mistake(f"{shown(self.name)}:{mark.line}:{mark.column}: {subject}{what}")


def dotted(path: Iterable[str | int]) -> str:
    """``('parameters', 'tp', 2)`` as ``parameters.tp[2]``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f"{'.' if text else ''}{shown(step, 60)}"
    return text


def by_dotted_path(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values of nested mappings: ``{'parameters.tp': 2}``."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            found |= by_dotted_path(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def as_written(value: Any, most: int = 60) -> str:
    """A value as the user wrote it, shortened."""
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, (list, tuple)) and not value:
        return "an empty list"
    if value is None:
        return "nothing"
    return shown(str(value).lower() if isinstance(value, bool) else repr(value), most)


def read_document(path: Path, mistake: type[Exception] = FileError) -> Document:
    """Read a YAML file; raises ``mistake`` for anything that is not one small YAML document."""
    try:
        text = read_text(path, MAX_BYTES)
    except FileError as error:
        raise mistake(str(error)) from None
    return parse_document(text, str(path), mistake)


def plain_scalar(text: str) -> Any:
    """The value of a plain (unquoted) scalar, by YAML 1.2's core schema."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) <= 400 and _INTEGER.fullmatch(text):
        return int(text)
    if len(text) <= 400 and _FLOAT.fullmatch(text):
        return float(text)
    return text


def written_document(content: Mapping[str, Any]) -> str:
    """Text of a document that :func:`read_document` reads back unchanged."""
    text: str = yaml.dump(
        content,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=None,
        width=100,
        allow_unicode=True,
    )
    return text


class _Dumper(yaml.SafeDumper):
    """Quotes text that the reader would read as something else: 3e-4, say."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    block = "|" if "\n" in text.strip() else None
    style = block if plain_scalar(text) == text else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
_Dumper.ignore_aliases = lambda *_: True  # type: ignore[method-assign]


def parse_document(text: str, name: str, mistake: type[Exception] = FileError) -> Document:
    """Parse one YAML document; raises ``mistake`` with the place of what is wrong."""
    try:
        root = _Builder(name, mistake).build(yaml.parse(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        raise mistake(_syntax(error, text, shown(name))) from None
    return Document(name, root, mistake)


_SYNTAX_HINTS = {
    "expected key": "keys of one mapping begin in the same column",
    "mapping values": "keys of one mapping begin in the same column, text with ': ' is in quotes",
    "expected ':'": "a key is written 'key: value', with a space",
    "expected ',' or": "is a bracket not closed, or text with brackets not in quotes?",
}


def _syntax(error: yaml.YAMLError, text: str, name: str) -> str:
    """The message for a syntax error: one line, with its place."""
    if not isinstance(error, yaml.MarkedYAMLError):
        first = str(error).splitlines()[0] if str(error) else "unreadable"
        return f"{name}: not YAML text: {shown(first)}"
    mark = error.problem_mark or error.context_mark
    problem = shown(error.problem or error.context or "unreadable")
    if mark is None:
        return f"{name}: not YAML: {problem}"
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    indent = line[: len(line) - len(line.lstrip())]
    hints = [hint for part, hint in _SYNTAX_HINTS.items() if part in problem]
    if "\t" in indent or "tab" in problem:
        hints = ["indent with spaces, not tabs"]
    if odd := [number for number, each in enumerate(lines, 1) if "\xa0" in each]:
        hints = [f"line {odd[0]} has a no-break space: write a plain one"]
    return "; ".join([f"{name}:{mark.line + 1}:{mark.column + 1}: not YAML: {problem}", *hints])


def document_of(value: Any, name: str, mistake: type[Exception] = FileError) -> Document:
    """A document from Python values instead of a file; every place is line 1, column 1.

    Raises ``mistake`` for values other than numbers, text, booleans, None, mappings and lists.
    """

    def node(each: Any) -> Node:
        if isinstance(each, Mapping):
            return Node({str(key): (start, node(child)) for key, child in each.items()}, start)
        if isinstance(each, (list, tuple)):
            return Node([node(child) for child in each], start)
        if each is not None and not isinstance(each, (bool, int, float, str)):
            raise mistake(f"{name}: found {as_written(each)}, accepted what YAML can write")
        return Node(each, start)

    start = Mark(1, 1)
    return Document(name, node(value), mistake)


class _Builder:
    """Builds nodes from parser events; bounded in depth and number."""

    def __init__(self, name: str, mistake: type[Exception]) -> None:
        self.name, self.mistake = shown(name), mistake
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
            raise self.mistake(f"{self.name}:1:1: found an empty file, accepted a mapping of keys")
        return root

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        if isinstance(event, yaml.AliasEvent):
            name = str(event.anchor)
            anchored = self.anchors.get(name)
            if anchored is None:
                raise self._error(event, f"alias '*{shown(name, 60)}' names no finished anchor")
            self._check_depth(event, depth + anchored.depth - 1)
            return self._count(event, anchored)
        if event.tag is not None:
            tag = f"found the YAML tag {as_written(event.tag)}"
            raise self._error(event, f"{tag}, accepted plain values without tags")
        self._check_depth(event, depth)
        mark = _mark(event)
        if isinstance(event, yaml.ScalarEvent):
            text = self._text(event)
            node = Node(plain_scalar(text) if event.implicit[0] else text, mark)
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
        return _above(items, mark, items)

    def _mapping(self, mark: Mark, events: Iterator[Any], depth: int) -> Node:
        items: dict[str, tuple[Mark, Node]] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise self._error(event, "found a key that is not text, accepted plain names")
            key = self._text(event)
            if key == "<<" and event.implicit[0]:
                raise self._error(event, "merge keys ('<<') are not accepted; write the keys out")
            if key in items:
                twice = f"found twice, first on line {items[key][0].line}; accepted once"
                raise self._error(event, f"key '{shown(key, 60)}': {twice}")
            items[key] = (_mark(event), self._node(next(events), events, depth + 1))
        return _above(items, mark, [child for _, child in items.values()])

    def _text(self, event: yaml.ScalarEvent) -> str:
        """A scalar's text, without characters that no file name, command or log can hold."""
        text: str = event.value
        if bad := _NOT_TEXT.search(text):
            raise self._error(event, f"found the character {bad[0]!a}, accepted text")
        return text

    def _check_depth(self, event: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self._error(event, f"nested deeper than {MAX_DEPTH} levels")

    def _count(self, event: Any, node: Node) -> Node:
        self.nodes += node.size
        if self.nodes > MAX_VALUES:
            raise self._error(event, f"more than {MAX_VALUES:,} values (aliases count each time)")
        return node

    def _error(self, event: Any, what: str) -> Exception:
        mark = _mark(event)
        return self.mistake(f"{self.name}:{mark.line}:{mark.column}: {what}")


def _above(value: Any, mark: Mark, children: Sequence[Node]) -> Node:
    size = 1 + sum(child.size for child in children)
    return Node(value, mark, size, 1 + max((child.depth for child in children), default=0))


def _mark(event: Any) -> Mark:
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)
