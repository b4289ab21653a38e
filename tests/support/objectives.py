"""What a trial's result says of a space's objectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces import SearchSpace
from workflows.search.objectives import values_of


def objective_values(
    space: SearchSpace, config: Mapping[str, Any], result: Mapping[str, Any]
) -> dict[str, float]:
    return values_of(space.objectives, space, config, result)
