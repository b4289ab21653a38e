"""Numbers as logs print them, in the unit that a metric's key names.

``11.5K`` is 11,500; ``elapsed time (ms): 812`` is 0.812 of ``step_time_s``; ``420 tokens/s/GPU``
on 8 GPUs is 3,360 of ``tokens_per_second``; ``2.5s/it`` is 0.4 of ``steps_per_second``. The text
beside the number decides, unless the pattern states a unit; if they contradict each other, that is
an error.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from foundation.messages import listed

_PER = ("/", "_per_", " per ")
_TIME = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "µs", "usec", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nanoseconds"), 1e-9),
    **dict.fromkeys(("min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
}
_TIME |= {
    f"{unit}{per}{step}": _TIME[unit]
    for unit in ("s", "ms", "sec")
    for per in _PER
    for step in ("it", "iter", "iteration", "step", "batch", "ba", "sample", "token")
}
_MEMORY = {"b": 1.0, "byte": 1.0, "bytes": 1.0} | {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate("kmgtp", start=1)
    for unit, base in (("b", 1000.0), ("ib", 1024.0))
}
_FLOPS = {
    f"{prefix}{unit}": factor
    for prefix, factor in (("g", 1e-3), ("t", 1.0), ("p", 1e3), ("e", 1e6))
    for unit in ("flop/s", "flops", "flops/s", "flop/sec", "flops/sec", "flop", "flop_s")
}
_SPANS = ("s", "sec", "second", "min", "minute", "h", "hour")


def _rates(*things: str) -> dict[str, float]:
    return {f"{t}{per}{span}": 1 / _TIME[span] for t in things for per in _PER for span in _SPANS}


_TOKENS = _rates("tokens", "token", "toks", "tok", "words") | {"tps": 1.0, "wps": 1.0}
_SAMPLES = _rates("samples", "sample", "sequences", "sequence", "seqs", "seq", "examples")
_STEPS = _rates(
    *("it", "iter", "iters", "iteration", "iterations", "step", "steps", "batch", "batches", "ba")
)

_DIMENSIONS: dict[str, dict[str, float]] = {
    "time": _TIME,
    "memory": _MEMORY,
    "FLOP/s": _FLOPS,
    "tokens/s": _TOKENS,
    "samples/s": _SAMPLES,
    "steps/s": _STEPS,
}
# The end of a metric's key names its unit; the first matching row counts.
_KEYS = (
    (r"(?:[a-z]+_)?tokens_per_second(?:_per_gpu)?", "tokens/s", 1.0),
    (r"samples_per_second(?:_per_gpu)?", "samples/s", 1.0),
    (r"(?:micro_batches|steps)_per_second", "steps/s", 1.0),
    (r"(?:\w+_)?tflops(?:_per_gpu)?", "FLOP/s", 1.0),
    (r"\w+_gib", "memory", 2.0**30),
    (r"\w+_gb", "memory", 1e9),
    (r"\w+_mib", "memory", 2.0**20),
    (r"\w+_bytes", "memory", 1.0),
    (r"\w+_ms", "time", 1e-3),
    (r"(?!\w+_per_s$)\w+_s", "time", 1.0),
)
_MAGNITUDES = {"K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
# A word before a colon is the next number's label.
_AFTER = re.compile(
    r"(?P<magnitude>[KkMGBT](?![A-Za-z]))?"
    r"(?: ?[(\[]?(?P<unit>[A-Za-zµ][A-Za-zµ_/]{0,30}(?: [(\[]?[A-Za-zµ_/]{1,30}){0,5})"
    r"(?![\w/]| ?[:=]))?"
)
_BEFORE = re.compile(
    r"(?P<unit>[A-Za-zµ][A-Za-zµ_/ ]{0,60})[)\]]?['\"]?\s{0,8}[:=|]?\s{0,16}['\"(\[]?$"
)
# Words before a number that belong to no other number.
_LABEL = re.compile(r"[^\d,;|)]*(?:\)\W*)?$")
_PER_GPU = re.compile(
    r"(?i)(?:/|_per_|\bper[ _-])(?:gpu|device|gcd|rank|chip|card)(?![a-z])|\btgs\b"
)
_PER_NODE = re.compile(r"(?i)(?:/|_per_|\bper[ _-])(?:node|host)(?![a-z])")
_PERIOD = r"(?P<span>[A-Za-zµ]+)(?:/|_per_| per )(?P<thing>[A-Za-z]+)"  # such as s/it
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_NOT_FINITE = re.compile(r"(?i)[-+]?(?:nan|inf|infinity)")


class QuantityError(ValueError):
    """The text that a pattern found is no number, or has another dimension than the metric."""


class Context(NamedTuple):
    """The text around a number on its line."""

    before: str
    after: str


@dataclass(frozen=True)
class _Unit:
    dimension: str
    factor: float  # to the dimension's base: seconds, bytes, TFLOP/s, 1/s
    text: str


def check_unit(unit: str, metric: str) -> None:
    """Raise :class:`QuantityError` unless a metric can be given in this unit."""
    wanted = _of_key(metric)
    if wanted is None:
        raise QuantityError(
            f"unit {unit!r} of {metric!r}: accepted for metrics whose key says their own, as "
            "step_time_s, peak_memory_bytes or tokens_per_second do; use 'scale' for others"
        )
    if _factor(unit, wanted.dimension) is None:
        known = sorted(_DIMENSIONS[wanted.dimension], key=len)
        raise QuantityError(
            f"unit {unit!r} of {metric!r}: accepted a unit of {wanted.dimension}: "
            f"{listed(known, 8)}"
        )


def quantity(number: str, beside: Context, metric: str, unit: str | None, num_gpus: int) -> float:
    """A number of a log line, such as ``1,234.5``, ``3.36K`` or ``nan``, in its metric's unit.

    The ``unit`` is the one that the pattern states; ``""``: the metric's own. ``num_gpus`` turns
    rates per GPU into rates of the job.

    Raises QuantityError if it is no number, or has another dimension than its metric.
    """
    text = number.strip().rstrip(",.;")
    if len(text) > 1 and text[-1] in _MAGNITUDES and text[-2].isdigit():
        # The pattern may have taken a part of the unit: 12.5G of 12.5GiB.
        text, beside = text[:-1], Context(beside.before, text[-1] + beside.after)
    value = _plain(text, metric)
    if not math.isfinite(value):
        return value
    after, before = _AFTER.match(beside.after), _BEFORE.search(beside.before[-80:])
    printed = after["magnitude"] if after else None
    magnitude = _MAGNITUDES[printed] if printed else 1.0
    wanted = _of_key(metric)
    if wanted is None or unit == "":
        return value * magnitude
    units = Context(before["unit"] if before else "", (after and after["unit"]) or "")
    if wanted.dimension == "memory" and printed:  # 12.3G: a unit, binary if the metric's is
        prefix = printed + "i" if wanted.text.endswith("ib") else printed
        magnitude, units = 1.0, Context(units.before, "B" if printed == "B" else prefix + "B")
    label = _LABEL.search(beside.before[-80:])
    words = f"{label[0] if label else ''} {units.after} {unit or ''}"
    if wanted.dimension.endswith("/s") and _PER_NODE.search(words):
        raise QuantityError(
            f"{metric!r}: the log's {words.strip()!r} beside {number!r} is of one node: match "
            "another number, or give the pattern unit '' and as its scale the nodes"
        )
    of_job = metric.endswith(("tokens_per_second", "samples_per_second"))
    gpus = num_gpus if of_job and _PER_GPU.search(words) else 1
    if value and (seconds := _seconds_per(units, wanted.dimension)):
        return gpus / (value * magnitude * seconds)
    seen = _seen(units, wanted.dimension, metric)
    if unit is not None:
        stated = _factor(unit, wanted.dimension)
        if seen is not None and stated is not None and not math.isclose(seen.factor, stated):
            raise QuantityError(
                f"{metric!r}: the log says {seen.text!r} beside {number!r}, the pattern's unit is "
                f"{unit!r}: correct it, or leave it out"
            )
        factor = stated if stated is not None else 1.0
    else:
        factor = seen.factor if seen else wanted.factor
    return value * magnitude * factor / wanted.factor * gpus


def _plain(text: str, metric: str) -> float:
    if _GROUPED.fullmatch(text):
        return float(text.replace(",", ""))
    if _NUMBER.fullmatch(text) or _NOT_FINITE.fullmatch(text):
        return float(text)
    raise QuantityError(
        f"the pattern of {metric!r} matched {text[:60]!r}, which is not a number: let its group "
        "hold the number alone, with a decimal point"
    )


def _of_key(metric: str) -> _Unit | None:
    key = metric.removesuffix(".median")
    for pattern, dimension, factor in _KEYS:
        if re.fullmatch(rf"(?:.*\.)?{pattern}", key):
            return _Unit(dimension, factor, key)
    return None


def _factor(unit: str, dimension: str) -> float | None:
    """Factor of a unit's text (such as ``tokens/s/GPU``); None if it has another dimension."""
    words = unit.strip().lower().replace("µ", "u")
    words = _PER_GPU.sub("", words).strip()
    table = _DIMENSIONS[dimension]
    if words in table:
        return table[words]
    magnitude, _, rest = words.partition(" ")
    if magnitude in ("k", "m", "g", "b") and rest in table:
        return table[rest] * _MAGNITUDES[magnitude.upper()]
    if dimension in ("tokens/s", "samples/s") and words[:1] in ("k", "m") and words[1:] in table:
        return table[words[1:]] * _MAGNITUDES[words[0].upper()]
    return None


def _seconds_per(beside: Context, dimension: str) -> float | None:
    """Seconds per step, sample or token, if the words beside a number name such a time."""
    before = _PER_GPU.sub("", beside.before).strip()
    found = re.match(_PERIOD, beside.after) or re.search(rf"(?<![\w/]){_PERIOD}$", before)
    if found is None or _factor(f"{found['thing']}/s", dimension) is None:
        return None
    return _factor(found["span"], "time")


def _seen(beside: Context, dimension: str, metric: str) -> _Unit | None:
    """The unit in the words right after the number, or right before it."""
    for words, from_start in ((beside.after, True), (beside.before, False)):
        for text in _candidates(words, from_start) if words else ():
            if (factor := _factor(text, dimension)) is not None:
                return _Unit(dimension, factor, text.strip())
            other = next(
                (d for d in _DIMENSIONS if d != dimension and len(text) > 2 and _factor(text, d)),
                None,
            )
            per_time = other == "time" and words.endswith(f"/{text}")  # such as throughput/sec
            if other and not per_time:
                raise QuantityError(
                    f"{metric!r} is of {dimension}; the log says {text.strip()!r} beside its "
                    "number: match another number, or name the metric after what it is"
                )
    return None


def _candidates(words: str, from_start: bool) -> list[str]:
    """Prefixes (``from_start``) or suffixes of a text at word boundaries, longest first."""
    cuts = [i for i, c in enumerate(words) if c in (" _" if from_start else " _/")]
    if from_start:
        return [words, *(words[:cut] for cut in reversed(cuts))]
    return [words, *(words[cut + 1 :] for cut in cuts)]
