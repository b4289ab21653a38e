"""Lines and numbers as all benchmarks print them."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path


def machine(extra: Sequence[str]) -> str:
    """Machine, versions and date, one line."""
    model = next(
        (text.split(":")[1].strip() for text in Path("/proc/cpuinfo").read_text().splitlines()
         if text.startswith("model name")), platform.machine(),
    )  # fmt: skip
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "meshtune"))
    return (
        f"{model}, {os.cpu_count()} cores; Linux {platform.release()}, "
        f"Python {platform.python_version()}, {versions}; {'; '.join(extra)}; {date.today()}"
    )


def percent(value: float, signed: bool = False) -> str:
    """A share in percent; empty for nan."""
    if math.isnan(value):
        return ""
    return f"{100 * value:{'+' if signed else ''}.1f} %"


def spread(values: Sequence[float], unit: str = "", scale: float = 1.0) -> str:
    """The median, with minimum and maximum in brackets."""
    low, high = min(values) * scale, max(values) * scale
    return f"{statistics.median(values) * scale:.3g}{unit} ({low:.3g}-{high:.3g})"
