"""Counts a space: raw and valid configurations, and what each rule removes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .expression import Array
from .rules import Facts
from .source import SpaceError
from .space import SearchSpace

CHUNK = 1 << 22
EXACT_LIMIT = 200_000_000
SAMPLE = 1_000_000


@dataclass(frozen=True)
class RuleCount:
    """How many configurations one rule removes."""

    name: str
    text: str
    alone: int  # of all raw configurations
    in_order: int  # of those that the rules before it left


@dataclass(frozen=True)
class CheckReport:
    """The size of a space. ``exact`` is False where it was estimated from a random sample."""

    space: SearchSpace
    raw: int
    valid: int
    rules: tuple[RuleCount, ...]
    exact: bool

    @property
    def notes(self) -> list[str]:
        notes = []
        if missing := self.space.unsupported():
            notes.append(
                f"the built-in trainer does not have {', '.join(missing)} yet: "
                "this space can be checked, not searched"
            )
        if not self.exact:
            notes.append(f"counts are estimates from {SAMPLE:,} random configurations")
        return notes

    def text(self) -> str:
        """The report as plain text, a table of rules below the totals."""
        about = "" if self.exact else "about "
        share = 100 * self.valid / self.raw
        lines = [
            f"{self.space.name}: {self.raw:,} raw configurations, "
            f"{about}{self.valid:,} valid ({share:.3g} %)",
            *(f"  {name}: {_values(p.values)}" for name, p in self.space.parameters.items()),
        ]
        removing = [rule for rule in self.rules if rule.alone]
        if removing:
            width = max(len(rule.name) for rule in removing)
            lines.append(f"{'removed by':<{width}}  {'alone':>13}  {'in order':>13}")
            lines += [
                f"{rule.name:<{width}}  {rule.alone:>13,}  {rule.in_order:>13,}  {rule.text}"
                for rule in removing
            ]
        kept = [rule.name for rule in self.rules if not rule.alone]
        if kept:
            lines.append(f"kept by every configuration: {', '.join(kept)}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def check(space: SearchSpace, exact_limit: int = EXACT_LIMIT) -> CheckReport:
    """Count every configuration, or estimate where there are more than ``exact_limit``.

    Raises:
        SpaceError: if no configuration is valid; it names the rules that remove the most.
    """
    exact = space.raw_size <= exact_limit
    total = space.raw_size if exact else SAMPLE
    alone = dict.fromkeys((rule.name for rule in space.rules), 0)
    in_order = dict(alone)
    valid = 0
    for facts, shape in _chunks(space) if exact else [_sample(space)]:
        left = np.ones(shape, dtype=bool)
        count = left.size
        for rule in space.rules:
            kept = rule.holds(facts)
            # A rule reads few parameters: its array is small and stands for many rows.
            alone[rule.name] += (kept.size - int(np.count_nonzero(kept))) * (left.size // kept.size)
            left &= kept
            before, count = count, int(np.count_nonzero(left))
            in_order[rule.name] += before - count
        valid += count
    scale = space.raw_size / total
    counts = tuple(
        RuleCount(
            rule.name,
            rule.text,
            round(alone[rule.name] * scale),
            round(in_order[rule.name] * scale),
        )
        for rule in space.rules
    )
    if valid == 0:
        raise SpaceError(_impossible(space, counts, exact))
    return CheckReport(space, space.raw_size, round(valid * scale), counts, exact)


def _chunks(space: SearchSpace) -> Iterator[tuple[Facts, tuple[int, ...]]]:
    """Facts of all raw configurations as open grids: each parameter along its own axis."""
    names = list(space.parameters)
    sizes = [len(space.parameters[name].values) for name in names]
    split = 0  # parameters before it are looped over, those after it are axes
    while math.prod(sizes[split:]) > CHUNK:
        split += 1
    inner = names[split:]
    shape = tuple(sizes[split:])
    grid: dict[str, Array] = {
        name: space.parameters[name].array.reshape(_along(axis, len(inner)))
        for axis, name in enumerate(inner)
    }
    outer = [space.parameters[name].array for name in names[:split]]
    for values in itertools.product(*outer):
        fixed = {name: np.asarray(value) for name, value in zip(names, values, strict=False)}
        yield space.columns({**fixed, **grid}), shape


def _along(axis: int, dimensions: int) -> tuple[int, ...]:
    return tuple(-1 if i == axis else 1 for i in range(dimensions))


def _sample(space: SearchSpace) -> tuple[Facts, tuple[int, ...]]:
    generator = np.random.default_rng(0)
    raw = {name: generator.choice(p.array, SAMPLE) for name, p in space.parameters.items()}
    return space.columns(raw), (SAMPLE,)


def _impossible(space: SearchSpace, counts: tuple[RuleCount, ...], exact: bool) -> str:
    worst = sorted((c for c in counts if c.alone), key=lambda c: -c.alone)[:3]
    head = f"no configuration is valid (all {space.raw_size:,} tried)"
    if not exact:
        head = f"no valid configuration found in {SAMPLE:,} random ones of {space.raw_size:,}"
    lines = [
        f"  {c.name} removes {c.alone:,} ({100 * c.alone / space.raw_size:.3g} %): {c.text}"
        for c in worst
    ]
    return "\n".join([f"{space.file}: {head}", *lines])


def _values(values: tuple[object, ...]) -> str:
    shown = [str(v).lower() if isinstance(v, bool) else str(v) for v in values]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:5], "...", *shown[-3:]])
