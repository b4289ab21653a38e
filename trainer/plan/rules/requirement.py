"""A condition on configurations, and the trainer's words for refusing them.

Conditions are in the constraint grammar over names of configuration and model; one row or columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from foundation.documents import read_document
from trainer.plan.annotations import Trainers, value_types
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
    """One condition on configurations."""

    name: str  # as ``meshtune check`` lists it
    text: str  # the condition
    # the trainer's message, values in braces; empty if only a search leaves it out
    refusal: str = ""
    trainers: Trainers = "all"  # trainers it applies to
    # degrees of a user's own axes in the condition; requirements of files have none
    axes: tuple[str, ...] = ()

    @cached_property
    def condition(self) -> Expression:
        return parse(self.text, {**dict.fromkeys(self.axes, "number"), **TYPES})


def read_requirements(path: Path, trainers: Trainers = "all") -> dict[str, tuple[Requirement, ...]]:
    """Requirements of a YAML file by section; ``trainers``: default of those that name none."""
    sections: dict[str, list[dict[str, Any]]] = read_document(path).root.plain()
    return {
        section: tuple(Requirement(**{"trainers": trainers, **each}) for each in every)
        for section, every in sections.items()
    }


STATED = read_requirements(Path(__file__).with_name("requirements.yaml"), "builtin")


def refusal(requirements: Iterable[Requirement], values: Mapping[str, Any]) -> str | None:
    """Message of the first broken requirement; those without message or values are skipped."""
    columns = {name: constant(value) for name, value in values.items()}
    for each in requirements:
        known = each.condition.names <= columns.keys()
        if each.refusal and known and not each.condition.holds(columns):
            return each.refusal.format(**values)
    return None
