"""Placements in a space: their resolved degrees, and a rule that counts each once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np

from search_spaces.cluster import Cluster
from search_spaces.parameters import Parameter
from search_spaces.rules.rule import Facts, Rule
from trainer.plan.axes.mesh import is_pp_inside
from trainer.plan.placement import Topology
from trainer.plan.presets import resolve_presets
from trainer.plan.rules.expression import Array, Expression, ValueType
from trainer.plan.rules.requirement import QUANTIZED
from trainer.plan.states import DEGREES

TYPES: dict[str, ValueType] = {
    "placement": "text",
    **dict.fromkeys(DEGREES, "number"),
    **dict.fromkeys(QUANTIZED, "boolean"),
}
_SPELLING = {*TYPES, "zero_stage", "refresh_secondary", "reduce_precision"}
_LARGEST_TABLE = 2_000_000  # configurations; in larger spaces spellings are not compared


def ranks_per_pair(cluster: Cluster) -> int:
    """Ranks that share a card: 2 if the innermost link joins pairs of a node's GPUs, else 1."""
    innermost = cluster.links[0].gpus if cluster.links else 1
    paired = innermost == 2 < cluster.gpus_per_node and cluster.gpus_per_node % 2 == 0
    return 2 if paired else 1


def resolved(columns: Mapping[str, Array], counts: Mapping[str, Array]) -> dict[str, Array]:
    """Resolved placements; ``counts`` has, by parameter, a mask of where it is active."""
    topology = Topology(int(columns["gpus_per_node"]), int(columns["ranks_per_pair"]))
    apart = columns["tp"] * columns["gx"] * columns["gy"] * columns["gz"]
    apart = apart * np.where(is_pp_inside(columns["rank_order"]), columns["pp"], 1)
    holders = np.asarray(columns["dp"] * columns["cp"])  # ranks with the same weights
    return resolve_presets(columns, counts, holders, apart, topology)


def one_placement(parameters: Mapping[str, Parameter]) -> list[Rule]:
    """A rule against placements together with stages of ZeRO, for a space with placements."""
    if "placement" not in parameters:
        return []

    def test(facts: Facts) -> Array:
        named = facts.active.get("placement", np.True_)
        return np.logical_not(named) | (facts.columns["zero_stage"] == 0)

    text = "zero_stage == 0 where a placement is given"
    return [Rule("one_placement", text, frozenset(("placement", "zero_stage")), test)]


def counted_once(
    parameters: Mapping[str, Parameter],
    conditions: Mapping[str, Expression],
    derive: Callable[[Mapping[str, Array]], Facts],
    axes: Sequence[str],
) -> list[Rule]:
    """A rule that keeps the first of several spellings of one placement.

    For example, ``mics`` is ``zero3`` on a single node, and with one replica all are the same.
    Spaces that search nothing but ZeRO's stages get no such rule.
    """
    spelling = [name for name in parameters if name in _SPELLING]
    context = {"num_nodes", "tp", "pp", "rank_order", *axes}
    asked = list(spelling)
    while asked:  # also the parameters that decide whether one is active
        condition = conditions.get(asked.pop())
        if condition is not None:
            asked += condition.names - context
            context |= condition.names
    names = [name for name in parameters if name in context and name not in spelling]
    own = [parameters[name] for name in [*names, *spelling]]
    size = math.prod(len(parameter.values) for parameter in own)
    spellings = math.prod(len(parameters[name].values) for name in spelling)
    if set(spelling) <= {"zero_stage"} or spellings == 1 or size > _LARGEST_TABLE:
        return []
    others = {n: p.array[:1] for n, p in parameters.items() if n not in {o.name for o in own}}

    @cache  # a large table, computed at the first use
    def firsts() -> Array:
        sizes = [len(parameter.values) for parameter in own]
        axes = np.ogrid[tuple(slice(size) for size in sizes)]
        raw = {p.name: p.array[axis] for p, axis in zip(own, axes, strict=True)}
        meanings = np.broadcast_to(_meanings(derive({**others, **raw})), sizes)
        return _first_of_equals(meanings.reshape(-1, spellings)).reshape(sizes)

    def test(facts: Facts) -> Array:
        digits = []
        for parameter in own:
            order = np.argsort(parameter.array)
            found = np.searchsorted(parameter.array, facts.raw[parameter.name], sorter=order)
            digits.append(order[found])
        return np.asarray(firsts()[tuple(digits)])

    text = "the first of several spellings of one placement"
    return [Rule("placement_counts_once", text, frozenset(p.name for p in own), test)]


def _first_of_equals(rows: Array) -> Array:
    """Mask of the numbers that are not repetitions within their row."""
    order = np.argsort(rows, axis=1, kind="stable")
    first = np.diff(np.take_along_axis(rows, order, axis=1), axis=1, prepend=-1) > 0
    mask = np.empty_like(first)
    np.put_along_axis(mask, order, first, axis=1)
    return mask


def _meanings(facts: Facts) -> Array:
    """A number for each configuration, equal for equal placements."""
    columns = facts.columns
    alone = columns["dp"] * columns["cp"] == 1
    gathers = np.logical_not(alone) | (columns["gz"] > 1)
    quantized = columns["quantize_gradients"]
    named = facts.active.get("placement", np.asarray("placement" in facts.raw))
    parts = [
        *(columns[name] for name in DEGREES),
        columns["quantize_weights"] & gathers,
        quantized & ~alone,
        columns["quantize_secondary"],
        (columns["refresh_secondary"] == "step") | (columns["secondary_shard"] == 0),
        (columns["reduce_precision"] == "fp32") | quantized | alone,
        named & (columns["zero_stage"] > 0),  # invalid, so not a spelling of any placement
    ]
    meaning: Array = np.zeros((), dtype=np.int64)
    for part in parts:
        values, which = np.unique(part, return_inverse=True)
        meaning = meaning * len(values) + which
    return meaning
