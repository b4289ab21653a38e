"""One condition on configurations, and what a trainer says where it is not met.

Conditions are written in the constraint grammar, over the names of configurations, models and what
follows from them: one row or a column of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trainer.plan.annotations import value_types
from trainer.plan.fields import Choices
from trainer.plan.model import ModelConfig
from trainer.plan.rules.expression import Expression, ValueType, constant, parse

QUANTIZED = ("quantize_weights", "quantize_gradients", "quantize_secondary")
TYPES: dict[str, ValueType] = {
    **value_types(ModelConfig),
    **value_types(Choices),
    **dict.fromkeys(("world_size", "dp", "num_nodes", "gpus_per_node", "cluster_nodes"), "number"),
}
"""Every name that requirements can read."""


@dataclass(frozen=True)
class Requirement:
    """One condition that a configuration must satisfy.

    Attributes:
        name: as ``meshtune check`` lists it.
        text: the condition.
        refusal: what the trainer says where it is not met; values stand in braces. Empty for what
            only a search leaves out, although a trainer could run it.
        builtin_only: of the built-in trainer; others may pad, say.
        others_only: of others than the built-in trainer.
        axes: degrees that the condition reads of axes that not every job has.
    """

    name: str
    text: str
    refusal: str = ""
    builtin_only: bool = False
    others_only: bool = False
    axes: tuple[str, ...] = ()

    @cached_property
    def condition(self) -> Expression:
        return parse(self.text, {**dict.fromkeys(self.axes, "number"), **TYPES})


def refusal(requirements: Iterable[Requirement], values: Mapping[str, Any]) -> str | None:
    """Why a trainer refuses a configuration; None if it meets all that it has the values for.

    Args:
        requirements: in the order in which they are checked; those without words are skipped.
        values: of one configuration.
    """
    columns = {name: constant(value) for name, value in values.items()}
    for requirement in requirements:
        condition = requirement.condition
        if (
            requirement.refusal
            and condition.names <= columns.keys()
            and not condition.holds(columns)
        ):
            return requirement.refusal.format(**values)
    return None
