"""The known word that somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known name most like ``word``, if any is."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def nearest(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` where something like ``word`` is known, else nothing."""
    close = closest(word, known)
    return f"; did you mean '{close}'?" if close else ""
