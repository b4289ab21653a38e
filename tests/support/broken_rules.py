"""Rules that configurations break, asked one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from search_spaces import SearchSpace


def broken_rules(space: SearchSpace, columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Mask of the N raw configurations that break each rule, by the rule's name; shape (N,)."""
    facts = space.columns(columns)
    count = len(np.asarray(columns[next(iter(space.parameters))]))
    return {
        rule.name: np.broadcast_to(np.logical_not(rule.holds(facts)), (count,))
        for rule in space.rules
    }
