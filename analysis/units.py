"""Names, units and formats of metrics, configurations and times, for people to read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pandas as pd

Value = TypeVar("Value", float, "pd.Series[float]")

_KNOWN = {
    "tflops_per_gpu": ("throughput", "TFLOPS per GPU"),
    "hardware_tflops_per_gpu": ("hardware throughput", "TFLOPS per GPU"),
    "tokens_per_second": ("throughput", "tokens/s"),
    "tokens_per_second_per_gpu": ("throughput", "tokens/s per GPU"),
    "samples_per_second": ("throughput", "sequences/s"),
    "step_time_s": ("step time", "s"),
    "step_time_s.median": ("median step time", "s"),
    "peak_memory_bytes": ("peak memory", "GiB"),
    "energy_joules": ("energy", "J"),
    "num_nodes": ("nodes", ""),
    "node_seconds_per_token": ("node time", "s per token"),
    "joules_per_token": ("energy", "J per token"),
}
_SUFFIXES = (
    ("_gb_per_s", "GB/s"),
    ("_per_second", "1/s"),
    ("_bytes", "GiB"),
    ("_joules", "J"),
    ("_watts", "W"),
    ("_s", "s"),
)
GIB = 2**30


def name(key: str) -> str:
    """What a key of the result is called, without its unit."""
    if key in _KNOWN:
        return _KNOWN[key][0]
    stem = key.removesuffix(".median")
    for suffix, _ in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    return stem.replace("_", " ").replace(".", " ")


def unit(key: str) -> str:
    """Unit in which a key's value is shown; empty where none is known."""
    if key in _KNOWN:
        return _KNOWN[key][1]
    stem = key.removesuffix(".median")
    return next((shown for suffix, shown in _SUFFIXES if stem.endswith(suffix)), "")


def label(key: str) -> str:
    """Name and unit, for an axis or a column: ``throughput (tokens/s)``."""
    return f"{name(key)} ({unit(key)})" if unit(key) else name(key)


def scaled(key: str, value: Value) -> Value:
    """A value, or a column of values, in the unit in which it is shown: bytes become GiB."""
    return value / GIB if unit(key) == "GiB" else value


def number(value: float) -> str:
    """Four significant digits, thousands separated, never in powers of ten for usual sizes."""
    if not math.isfinite(value):
        return "–"
    if value == 0 or 1e-4 <= abs(value) < 1e12:
        digits = 0 if value == 0 else max(0, 3 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.3e}"


def counted(count: float, noun: str) -> str:
    """``1 trial``, ``2 trials``, ``0.5 node-hours``, ``2 successes``."""
    text = f"{count:g}" if isinstance(count, float) else str(count)
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{text} {noun if count == 1 else plural}"


def percent(share: float) -> str:
    """``12 %``, or ``1.2 %`` below ten; a dash for what is unknown."""
    if not math.isfinite(share):
        return "–"
    digits = 1 if abs(share) < 0.0995 else 0
    return f"{100 * share:.{digits}f} %"


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


def value_text(value: Any) -> str:
    """A parameter's value as YAML writes it; a dash where it has no effect."""
    if value is None:
        return "–"
    return str(value).lower() if isinstance(value, bool) else str(value)


def config_text(config: Mapping[str, Any]) -> str:
    """``tp=2 pp=1 mbs=4``, inactive parameters left out."""
    return " ".join(f"{k}={value_text(v)}" for k, v in config.items() if v is not None)
