"""The names that expressions and commands can use: parameters, model, cluster, derived."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

import numpy as np

from foundation.values import Scalar
from search_spaces.cluster import Cluster
from search_spaces.language.trainer_schema import TrainerSpec
from search_spaces.parameters import Parameter, value_type_of
from search_spaces.rules import placements
from search_spaces.rules.rule import Facts
from trainer.plan.axes.mesh import beside_dp, ordered, ranks_of_replica
from trainer.plan.fields import Choices
from trainer.plan.layouts import NO_LAYOUT
from trainer.plan.model import ModelConfig
from trainer.plan.rules.expression import Array, Expression, ValueType, constant
from trainer.plan.stages import LAYOUT

DERIVED = ("world_size", "dp", "global_batch_size")


def derived_nodes(parameters: Collection[str]) -> bool:
    """Whether a trial's nodes follow from its degrees: all degrees are searched, nodes are not."""
    return "dp" in parameters and "num_nodes" not in parameters


def static_facts(
    model: ModelConfig | None, cluster: Cluster | None, ranks_per_node: int = 1
) -> dict[str, Scalar]:
    """Facts of the model and the cluster, under the names of their records.

    Sizes that follow from others are resolved; the cluster's own number of nodes is
    ``cluster_nodes``, since ``num_nodes`` is a trial's.
    """
    facts: dict[str, Any] = {}
    if model is not None:
        facts |= model.model_dump()
        facts["num_kv_heads"], facts["ffn_hidden_size"] = model.kv_heads, model.ffn_size
        if not model.kv_lora_rank:
            facts["head_size"] = model.head_dim
        facts["num_parameters"] = model.num_parameters
    if cluster is None:
        facts["gpus_per_node"] = ranks_per_node
    else:
        ours = {"name", "source", "gpu", "num_nodes", "links", "nic"}
        machine = cluster.model_dump(exclude=ours)
        facts |= {name: value for name, value in machine.items() if value is not None}
        facts["ranks_per_pair"] = placements.ranks_per_pair(cluster)
        if cluster.domain_gpus > cluster.gpus_per_node:
            facts["gpus_on_links"] = cluster.domain_gpus
        if cluster.num_nodes is not None:
            facts["cluster_nodes"] = cluster.num_nodes
    return {name: v for name, v in facts.items() if isinstance(v, (bool, int, float, str))}


def defaults(spec: TrainerSpec) -> dict[str, Scalar]:
    """Values of parameters that are inactive or not in the space."""
    known: dict[str, Any] = {"num_nodes": 1, "vpp": 1, **dict.fromkeys(ordered(spec.axes), 1)}
    trainer = spec.builtin
    if trainer is None:
        known[LAYOUT] = NO_LAYOUT
    else:
        known |= {name: field.default for name, field in Choices.model_fields.items()}
        known |= {n: v for n, v in trainer.model_dump().items() if n in Choices.model_fields}
    return {name: value for name, value in known.items() if value is not None}


def types(
    parameters: Mapping[str, Parameter], static: Mapping[str, Scalar], known: Mapping[str, Scalar]
) -> dict[str, ValueType]:
    """The type of every name that a constraint can use."""
    placed = placements.TYPES if _places(known) else {}
    facts = {name: value_type_of(value) for name, value in {**static, **known}.items()}
    result: dict[str, ValueType] = {**placed, **facts}
    result |= {name: parameter.value_type for name, parameter in parameters.items()}
    result |= {"world_size": "number", "dp": "number"}
    if "mbs" in result and "gas" in result:
        result["global_batch_size"] = "number"
    return result


def condition_order(conditions: Mapping[str, Expression]) -> list[str]:
    """Conditional parameters, each after those that its condition names.

    Raises graphlib.CycleError if conditions name each other in a circle.
    """
    graph = {name: expression.names & conditions.keys() for name, expression in conditions.items()}
    return list(TopologicalSorter(graph).static_order())


@dataclass(frozen=True)
class Derivation:
    """Derives the names that rules can use from the parameters of a space."""

    parameters: Mapping[str, Parameter]
    conditions: Mapping[str, Expression]
    static: Mapping[str, Scalar]  # facts of the model and the cluster
    known: Mapping[str, Scalar]  # the trainer's defaults
    own_axes: Sequence[str]

    def reads(self) -> dict[str, frozenset[str]]:
        """The parameters that each name is derived from; none for constants."""
        found = {name: frozenset[str]() for name in (*self.static, *self.known)}
        found |= {name: frozenset((name,)) for name in self.parameters}

        def of(*names: str) -> frozenset[str]:
            return frozenset().union(*(found.get(name, frozenset()) for name in names))

        for name in condition_order(self.conditions):
            found[name] = of(name, *self.conditions[name].names)
        if derived_nodes(self.parameters):
            found["num_nodes"] = of(*ordered(self.own_axes))
        found["world_size"] = of("num_nodes")
        if "dp" not in self.parameters:
            found["dp"] = of("num_nodes", *beside_dp(self.own_axes))
        if _places(self.known):
            order = ("zero_stage", "dp", "tp", "pp", "rank_order", *self.own_axes)
            placed = of(*order, *placements.TYPES)
            for name in placements.TYPES:
                if name not in self.parameters or name in self.conditions:
                    found[name] = placed
        found["global_batch_size"] = of("mbs", "gas", "dp")
        return found

    def facts(self, raw: Mapping[str, Array]) -> Facts:
        """All facts of raw configurations, as columns.

        A conditional parameter is active where its condition is true and every conditional
        parameter that the condition names is active. Elsewhere it has the trainer's default, or is
        missing. The built-in trainer's placement is resolved.
        """
        constants = {**self.static, **self.known}
        columns: dict[str, Array] = {name: constant(v) for name, v in constants.items()}
        typed = {name: own.column(raw[name]) for name, own in self.parameters.items()}
        columns |= typed
        active: dict[str, Array] = {}
        missing: dict[str, Array] = {}
        for name in condition_order(self.conditions):
            condition = self.conditions[name]
            is_active: Array = condition.holds(columns)
            for parent in condition.names & active.keys():
                is_active = is_active & active[parent]
            active[name] = is_active
            if name in self.known:
                columns[name] = np.where(is_active, typed[name], constant(self.known[name]))
            else:
                missing[name] = np.logical_not(is_active)
        replica = ranks_of_replica(columns, self.own_axes)
        if derived_nodes(self.parameters):
            ranks = replica * columns["dp"]
            columns["num_nodes"] = np.floor_divide(ranks, columns["gpus_per_node"])
        columns["world_size"] = columns["num_nodes"] * columns["gpus_per_node"]
        if "dp" not in self.parameters:
            columns["dp"] = np.floor_divide(columns["world_size"], replica)
        if _places(self.known):
            counts = {name: active.get(name, np.True_) for name in typed}
            columns |= placements.resolved(columns, counts)
            missing = {n: where for n, where in missing.items() if n not in placements.TYPES}
        if "mbs" in columns and "gas" in columns:
            columns["global_batch_size"] = columns["mbs"] * columns["gas"] * columns["dp"]
            absent = [missing[name] for name in ("mbs", "gas") if name in missing]
            if absent:
                missing["global_batch_size"] = np.logical_or.reduce(absent)
        return Facts(columns, typed, active, missing)


def _places(known: Mapping[str, Scalar]) -> bool:
    """Whether the trainer is the built-in one, whose defaults name a stage of ZeRO."""
    return "zero_stage" in known
