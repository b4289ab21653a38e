"""Keys of a ``config.json``; missing ones have their architecture's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from foundation.documents import Document, as_written

T = TypeVar("T")
MOST = 10_000_000  # bound on most sizes
_ROPE = ("rope_parameters", "rope_scaling")  # since version 5 of transformers, and before


@dataclass(frozen=True)
class Keys:
    """Typed access to keys; an error names file, line, key, value and the accepted values."""

    document: Document
    above: tuple[str, ...] = ()  # path to the language model's keys; empty: the top level
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of keys that the file leaves out
    names: Mapping[str, str] = field(default_factory=dict)  # other names of keys in the file

    @property
    def values(self) -> dict[str, Any]:
        """Keys and values of the language model."""
        _, node = self.document.locate(self.above)
        plain = node.plain()
        return plain if isinstance(plain, dict) else {}

    def given(self, key: str) -> Any:
        """The unchecked value of a key, a single one if all layers share it; None if missing."""
        value = self.values.get(self._name(key), self.defaults.get(key))
        if key == "intermediate_size" and isinstance(value, list) and value:
            return value[0] if value == value[:1] * len(value) else value
        return value

    def count(self, key: str, least: int = 1, most: int = MOST) -> int:
        """A whole number; raises SpaceError if there is none."""
        value = self.some(key, least, most)
        if value is None:
            raise self.error(key, f"found nothing, accepted a whole number from {least:,} up")
        return value

    def some(self, key: str, least: int = 1, most: int = MOST) -> int | None:
        """A whole number, or None."""
        number: int | None = self.given(key)
        fits = type(number) is int and least <= number <= most
        return self._checked(key, number, fits, f"a whole number from {least:,} to {most:,}")

    def flag(self, key: str) -> bool:
        """A boolean; false where the key is missing."""
        flag: bool | None = self.given(key)
        return bool(self._checked(key, flag, isinstance(flag, bool), "true or false"))

    def words(self, key: str) -> list[str] | None:
        """A list of texts, or None."""
        words: list[str] | None = self.given(key)
        fits = isinstance(words, list) and all(isinstance(word, str) for word in words)
        return self._checked(key, words, fits, "a list of texts")

    def items(self, key: str, of: str) -> list[Any]:
        """A list of any items; empty if the key is missing."""
        items: list[Any] | None = self.given(key)
        return self._checked(key, items, isinstance(items, list), f"a list of {of}") or []

    def _checked(self, key: str, value: T | None, fits: bool, accepted: str) -> T | None:
        """The value, or None for none; raises SpaceError for one that does not fit."""
        if value is None or fits:
            return value
        raise self.error(key, f"found {as_written(value)}, accepted {accepted}")

    def rope(self, key: str) -> Any:
        """A key of rotary positions, wherever this version of the file has it."""
        found = self.given(key)
        for name in _ROPE:
            inside = self.given(name)
            if isinstance(inside, dict):
                # Gemma 3 has one set for each kind of layer.
                inside = inside.get("full_attention", inside)
                found = inside.get(key, found) if isinstance(inside, dict) else found
        return found

    def error(self, key: str, what: str) -> Exception:
        """An error at a key, or at the place where it is missing."""
        name = self._name(key)
        error = self.document.wrong if name in self.values else self.document.error
        return error((*self.above, name), what)

    def _name(self, key: str) -> str:
        own = self.names.get(key, key)
        return own if own in self.values or key not in self.values else key
