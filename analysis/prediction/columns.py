"""Parameters of a space that the cost model reads, and the jobs that their values make."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from search_spaces import SearchSpace
from trainer.plan.annotations import Column, columns, value_types, values_of
from trainer.plan.axes.mesh import GRID, PRICED_AXES, beside_dp
from trainer.plan.fields import Choices, OtherChoices
from trainer.plan.jobs import Jobs, jobs
from trainer.plan.model import ModelConfig
from trainer.plan.stages import STAGE_SETTINGS

NEEDED = (*beside_dp(), "vpp", "mbs", "gas", "dp", "world_size", "num_layers")
_COLUMNS = {**columns(Choices), **columns(OtherChoices)}
_OTHERS = value_types(OtherChoices)


def jobs_from(
    space: SearchSpace, shape: ModelConfig, engines: Collection[str], raw: Mapping[str, Any]
) -> Jobs:
    """The jobs of raw configurations by column; ``engines`` are numbered in their order."""
    facts = space.columns(raw)
    known, axes = facts.columns, space.program.axes
    found: dict[str, Any] = {name: known[name] for name in NEEDED if name != "num_layers"}
    found |= {name: known[name] if name in axes else 1 for name in PRICED_AXES}
    if "gx" in axes:
        found |= {"tp": known["tp"] * known["gx"], "on_grid": known["gx"] > 1}
    mixed = shape.mixture is not None and "ep" not in axes
    for key, (name, column) in _COLUMNS.items():
        if name in known and _understood(space, name, column) and (mixed or not column.mixtures):
            found[key] = facts.said(name, column.other, column.codes)
    if space.trainer.builtin is not None:
        found |= {"etp": 1} if mixed else {}
        found |= values_of(space.trainer.builtin)
    if len(engines) > 1:
        found["engine"] = facts.said("engine", 0, {word: n for n, word in enumerate(engines)})
    count = len(next(iter(raw.values())))
    return jobs({key: np.broadcast_to(each, (count,)) for key, each in found.items()}, shape)


def _understood(space: SearchSpace, name: str, column: Column) -> bool:
    """Whether the cost model knows all values of a parameter: another trainer may use others."""
    if name not in _OTHERS or name not in space.parameters:
        return True
    own = space.parameters[name]
    return own.value_type == _OTHERS[name] and {*own.values} <= {*(column.codes or own.values)}


def unpriced_axes(space: SearchSpace) -> list[str]:
    """Parallel axes that the cost model does not know, except those that are always 1."""
    unknown = [name for name in space.program.axes if name not in (*PRICED_AXES, *GRID)]
    return [name for name in unknown if set(space.parameters[name].values) != {1}]


def unpriced_parameters(space: SearchSpace) -> list[str]:
    """Parameters of several values in which the cost model sees no difference in a step's time.

    It sees a parameter if a priced one depends on it, through a condition or a derived degree.
    """
    mixed = space.model is not None and space.model.mixture is not None
    settings = space.program.habits.stage_settings
    read = [*NEEDED, "gx", *PRICED_AXES, "placement", "engine", *settings]
    read += [
        name
        for name, column in _COLUMNS.values()
        if name not in STAGE_SETTINGS and (mixed or not column.mixtures)
        if not column.memory_only
        if _understood(space, name, column)
    ]
    seen = frozenset[str]().union(*(space.reads.get(name, frozenset()) for name in read))
    return [n for n, p in space.parameters.items() if len(p.values) > 1 and n not in seen]
