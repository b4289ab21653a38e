"""Names and units of metrics, for people to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from foundation.quantities import measured

if TYPE_CHECKING:
    import pandas as pd

Value = TypeVar("Value", float, "pd.Series[float]")

_KNOWN = {
    "tflops_per_gpu": ("throughput", "TFLOPS per GPU"),
    "hardware_tflops_per_gpu": ("hardware throughput", "TFLOPS per GPU"),
    "tokens_per_second": ("throughput", "tokens/s"),
    "tokens_per_second_per_gpu": ("throughput", "tokens/s per GPU"),
    "padded_tokens_per_second": ("throughput with padding", "tokens/s"),
    "labelled_tokens_per_second": ("throughput of labels", "tokens/s"),
    "labelled_tokens_per_second_per_gpu": ("throughput of labels", "tokens/s per GPU"),
    "epochs_per_second": ("throughput", "passes over the data/s"),
    "samples_per_second": ("throughput", "sequences/s"),
    "step_time_s": ("step time", "s"),
    "step_time_s.median": ("median step time", "s"),
    "peak_memory_bytes": ("peak memory", "GiB"),
    "energy_joules": ("energy", "J"),
    "num_nodes": ("nodes", ""),
    "node_seconds_per_token": ("node time", "s per token"),
    "joules_per_token": ("energy", "J per token"),
    "cost": ("cost", "per billion tokens"),
    "co2": ("CO2", "kg per billion tokens"),
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
    """Name of a metric, without its unit."""
    if key in _KNOWN:
        return _KNOWN[key][0]
    stem = key.removesuffix(".median")
    for suffix, _ in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    return stem.replace("_", " ").replace(".", " ")


def unit(key: str) -> str:
    """Unit in which a metric is shown; empty if unknown."""
    if key in _KNOWN:
        return _KNOWN[key][1]
    stem = key.removesuffix(".median")
    return next((shown for suffix, shown in _SUFFIXES if stem.endswith(suffix)), "")


def label(key: str) -> str:
    """Name and unit, for an axis or a column: ``throughput (tokens/s)``."""
    return f"{name(key)} ({unit(key)})" if unit(key) else name(key)


def text(key: str, value: float, error: float = 0.0) -> str:
    """A value with its unit, and with its standard error if there is one: ``31.5 ± 0.7 s``."""
    shown = measured(scaled(key, value), scaled(key, error))
    return f"{shown} {unit(key) or name(key)}"


def scaled(key: str, value: Value) -> Value:
    """A value, or a column of values, in the unit in which it is shown: bytes become GiB."""
    return value / GIB if unit(key) == "GiB" else value
