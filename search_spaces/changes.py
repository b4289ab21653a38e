"""The differences between two definitions of a search, in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from foundation.documents import as_written, by_dotted_path
from foundation.secret_words import disclosed, is_secret

_HIDDEN = ("trainer.env.", "trainer.files.")  # whatever their names, they may be secret


def changed_keys(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
    """A line for each dotted key whose JSON text, as fingerprints see it, is not the same."""
    now, was = by_dotted_path(new), by_dotted_path(old)
    keys = [key for key in now | was if _text(now.get(key)) != _text(was.get(key))]
    return [_change(key, now.get(key), was.get(key)) for key in keys]


def _text(value: Any) -> str:
    """Unlike Python's values, 1, 1.0 and true differ."""
    return json.dumps(value, sort_keys=True)


def _change(key: str, new: Any, old: Any) -> str:
    name = key.rpartition(".")[2]
    if key.startswith(_HIDDEN) or any(is_secret(name, str(value)) for value in (new, old)):
        return f"{key}: found another value"
    told, had = _told(new), _told(old)
    if _text(told) == _text(had):
        return f"{key}: found another value"
    if isinstance(told, list) and isinstance(had, list) and len(str(told)) > 60:
        pairs = zip(told, had, strict=False)
        same = len(list(takewhile(lambda pair: _text(pair[0]) == _text(pair[1]), pairs)))
        key, told, had = f"{key}[{same}:]", told[same:], had[same:]
    return f"{key}: found {as_written(told)}, the run has {as_written(had)}"


def _told(value: Any) -> Any:
    """A value with ``***`` for secret words, if it is a list of words."""
    words = isinstance(value, list) and all(isinstance(word, str) for word in value)
    return disclosed(value) if words else value
