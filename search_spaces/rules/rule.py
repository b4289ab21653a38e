"""What makes a configuration valid: the trainer's requirements, and the space's own constraints.

A rule that needs a fact which the space does not have (no model, no such parameter) is left out.
Where a parameter is inactive and the trainer has no default for it, rules that name it hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from trainer.rules.expression import Array, Expression, ValueType
from trainer.rules.requirements import REQUIREMENTS, SWITCHED_OFF_BY


@dataclass(frozen=True)
class Facts:
    """Every name that rules can use, as columns that broadcast against each other."""

    columns: Mapping[str, Array]
    raw: Mapping[str, Array]  # the parameters as they were given
    active: Mapping[str, Array]  # of parameters with a condition
    missing: Mapping[str, Array] = field(default_factory=dict)  # inactive and without default


@dataclass(frozen=True)
class Rule:
    """One reason for which a configuration is invalid."""

    name: str
    text: str
    names: frozenset[str]
    _test: Callable[[Facts], Array]

    def holds(self, facts: Facts) -> np.ndarray:
        """Where the rule is kept; the shape is that of the columns it reads."""
        return np.asarray(self._test(facts))


def expressed(name: str, expression: Expression) -> Rule:
    """A rule from an expression; it holds where a parameter that it names is missing."""

    def test(facts: Facts) -> Array:
        kept = expression.holds(facts.columns)
        for missing in expression.names & facts.missing.keys():
            kept = kept | facts.missing[missing]
        return kept

    return Rule(name, expression.text, expression.names, test)


def pinned(parameter: str, value: Array, condition: Expression) -> Rule:
    """An inactive parameter counts once: with its first value."""

    def test(facts: Facts) -> Array:
        return np.logical_or(facts.active[parameter], np.equal(facts.raw[parameter], value))

    text = f"{parameter} only where {condition.text}"
    return Rule(f"inactive_{parameter}", text, frozenset((parameter, *condition.names)), test)


def builtin(
    types: Mapping[str, ValueType], *, own_trainer: bool, allow: Iterable[str]
) -> list[Rule]:
    """The requirements that the space has the facts for, as rules."""
    off = {SWITCHED_OFF_BY[name] for name in allow}
    return [
        expressed(requirement.name, requirement.condition)
        for requirement in REQUIREMENTS
        if requirement.name not in off
        and not (own_trainer and requirement.builtin_only)
        and requirement.condition.names <= types.keys()
    ]
