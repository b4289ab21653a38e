"""Rules of valid configurations: the trainer's requirements, and the space's own constraints.

A rule that needs a fact which the space does not have (no model, no such parameter) is left out.
If a parameter is inactive and the trainer has no default for it, rules that name it hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainer.plan.rules.catalog import SWITCHED_OFF_BY, requirements
from trainer.plan.rules.expression import Array, Expression, ValueType


@dataclass(frozen=True)
class Facts:
    """Every name that rules can use, as columns that broadcast against each other."""

    columns: Mapping[str, Array]
    raw: Mapping[str, Array]  # the parameters as they were given
    active: Mapping[str, Array]  # of parameters with a condition
    missing: Mapping[str, Array] = field(default_factory=dict)  # inactive and without default

    def said(self, name: str, otherwise: Any, codes: Mapping[Any, float] | None = None) -> Array:
        """The values of a name, or their ``codes``, by configuration.

        ``otherwise`` stands for missing values, and for those without a code.
        """
        if name not in self.columns:
            return np.asarray(otherwise)
        said = np.asarray(self.columns[name])
        if codes is not None:
            parts = (np.where(said == value, n - otherwise, 0.0) for value, n in codes.items())
            said = np.asarray(sum(parts, otherwise))
        missing = None if otherwise is None else self.missing.get(name)
        return said if missing is None else np.where(missing, otherwise, said)


@dataclass(frozen=True)
class Rule:
    """A requirement on configurations; those that break it are invalid."""

    name: str
    text: str
    names: frozenset[str]
    _test: Callable[[Facts], Array]
    required: bool = False
    """Trainers require it, not only this space."""
    remedy: str = ""
    """Change to the space that makes such configurations valid, if there is one."""

    def holds(self, facts: Facts) -> np.ndarray:
        """Truth by row; the shape is that of the columns that the rule reads."""
        return np.asarray(self._test(facts))


def expressed(name: str, expression: Expression, required: bool = False) -> Rule:
    """A rule from an expression; it holds if a parameter that it names is missing."""

    def test(facts: Facts) -> Array:
        kept = expression.holds(facts.columns)
        for missing in expression.names & facts.missing.keys():
            kept = kept | facts.missing[missing]
        return kept

    return Rule(name, expression.text, expression.names, test, required)


def pinned(parameter: str, value: Array, condition: Expression) -> Rule:
    """A rule that an inactive parameter has its first value, so that it counts once."""

    def test(facts: Facts) -> Array:
        return np.logical_or(facts.active[parameter], np.equal(facts.raw[parameter], value))

    text = f"{parameter} only where {condition.text}"
    return Rule(f"inactive_{parameter}", text, frozenset((parameter, *condition.names)), test)


def builtin(
    types: Mapping[str, ValueType],
    *,
    own_trainer: bool,
    own_axes: Sequence[str],
    allow: Iterable[str],
) -> list[Rule]:
    """The trainer's requirements for which the space has the facts, except those in ``allow``."""
    off = {SWITCHED_OFF_BY[name] for name in allow}
    return [
        expressed(requirement.name, requirement.condition, required=True)
        for requirement in requirements(*own_axes)
        if requirement.name not in off
        and requirement.trainers in ("all", "others" if own_trainer else "builtin")
        and requirement.condition.names <= types.keys()
    ]
