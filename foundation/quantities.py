"""Counts, shares, times and parameters' values as people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def number(value: float) -> str:
    """Four significant digits, thousands separated, powers of ten only far from 1."""
    if not math.isfinite(value):
        return "–"
    if value == 0 or 1e-4 <= abs(value) < 1e12:
        digits = 0 if value == 0 else max(0, 3 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.3e}"


def significant(value: float, digits: int = 3) -> float:
    return float(f"{value:.{digits}g}")


def tokens_text(tokens: float) -> str:
    """``5 million tokens``, ``300 billion tokens``, ``15 trillion tokens``."""
    sizes = ((1e12, " trillion"), (1e9, " billion"), (1e6, " million"), (1.0, ""))
    size, word = next((each for each in sizes if tokens >= each[0]), sizes[-1])
    return f"{number(tokens / size)}{word} tokens"


def measured(value: float, error: float) -> str:
    """``31.5 ± 0.7``: the error, if not too small, to one digit (two if the first is 1)."""
    if not (math.isfinite(value) and math.isfinite(error) and error > 5e-5 * abs(value)):
        return number(value)
    place = math.floor(math.log10(error))
    place -= round(error / 10**place, 6) < 1.95
    shown = [f"{round(x, -place):,.{max(0, -place)}f}" for x in (value, error)]
    return " ± ".join(shown)


def counted(count: float, noun: str) -> str:
    """``1 trial``, ``2 trials``, ``1,140 node-hours``, ``2 successes``."""
    text = number(count) if isinstance(count, float) else f"{count:,}"
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{text} {noun if count == 1 else plural}"


def percent(share: float) -> str:
    """``12 %``, or ``1.2 %`` below ten; a dash for nan."""
    if not math.isfinite(share):
        return "–"
    digits = 1 if abs(share) < 0.0995 else 0
    return f"{100 * share:z.{digits}f} %"


def duration(seconds: float) -> str:
    """``4.2 s``, ``3 min 20 s``, ``2 h 5 min`` or ``3 d 4 h``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for large, small, size, rest in (("d", "h", 86400, 3600), ("h", "min", 3600, 60)):
        if whole >= size:
            return f"{whole // size} {large} {whole % size // rest} {small}"
    return f"{whole // 60} min {whole % 60} s"


def clock_text(seconds: float) -> str:
    """``1:02:03``, or ``2:03`` below an hour."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


def scalar_text(value: Any) -> str:
    """A text, number or boolean as YAML, JSON and most command lines write it: true, not True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def value_text(value: Any) -> str:
    """A parameter's value for people; a dash where it is inactive."""
    return "–" if value is None else scalar_text(value)


def config_text(config: Mapping[str, Any]) -> str:
    """``tp=2 pp=1 mbs=4``, inactive parameters left out."""
    return " ".join(f"{k}={value_text(v)}" for k, v in config.items() if v is not None)
