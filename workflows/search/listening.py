"""Messages of a driver to its listener, besides the events that it writes to the journal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tick:
    """A second has passed, or less if an attempt ended."""


@dataclass(frozen=True)
class Notice:
    """A line for whoever watches now; the journal does not keep it."""

    text: str
