"""What a driver tells whoever listens, beside the events that it writes to the journal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tick:
    """Time has passed: a second, or less where an attempt has ended."""


@dataclass(frozen=True)
class Notice:
    """Something that a person should know now and nobody later."""

    text: str
