"""What placements come to, for many configurations at once.

``trainer.placement.place`` decides this for one configuration; the tests hold the two together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from search_spaces.cluster import Cluster
from search_spaces.language.expression import Array, Expression, ValueType
from search_spaces.points.parameters import Parameter
from search_spaces.rules.rule import Facts, Rule
from trainer.placement import PRESETS, Topology, preset_wishes

DEGREES = ("weight_shard", "secondary_shard", "gradient_shard", "optimizer_shard")
QUANTIZED = ("quantize_weights", "quantize_gradients", "quantize_secondary")
TYPES: dict[str, ValueType] = {
    "placement": "text",
    **dict.fromkeys(DEGREES, "number"),
    **dict.fromkeys(QUANTIZED, "boolean"),
}
_SPELLING = {*TYPES, "zero_stage", "refresh_secondary", "reduce_precision"}
_LARGEST_TABLE = 2_000_000  # configurations; in spaces beyond it spellings are not compared


def ranks_per_pair(cluster: Cluster) -> int:
    """Ranks that share a card: 2 where the innermost link joins two of a node's many."""
    innermost = cluster.links[0].gpus if cluster.links else 1
    paired = innermost == 2 < cluster.gpus_per_node and cluster.gpus_per_node % 2 == 0
    return 2 if paired else 1


def resolve(columns: Mapping[str, Array], wished: Mapping[str, Array]) -> dict[str, Array]:
    """The degrees and quantizations that configurations end with, as ``place`` decides them.

    Args:
        columns: all other facts, and what the space says of placements.
        wished: by parameter of the space, where what it says counts.
    """
    numbered = np.array(PRESETS[:4])[columns["zero_stage"].astype(np.int64)]
    known = {"placement": numbered}
    known["placement"] = _either("placement", columns, wished, known)
    known |= _presets(known["placement"], columns)

    def either(name: str, otherwise: Array) -> Array:
        return _either(name, columns, wished, {name: otherwise})

    weights = either("weight_shard", known["weight_shard"])
    gradients = either("gradient_shard", np.maximum(known["gradient_shard"], weights))
    optimizer = either("optimizer_shard", np.maximum(known["optimizer_shard"], gradients))
    secondary = either("secondary_shard", np.where(weights > 1, known["secondary_shard"], 0.0))
    split = gradients > 1
    return {
        "placement": known["placement"],
        "weight_shard": weights,
        "secondary_shard": secondary,
        "gradient_shard": gradients,
        "optimizer_shard": optimizer,
        "quantize_weights": either("quantize_weights", known["quantize_weights"] & split),
        "quantize_gradients": either("quantize_gradients", known["quantize_gradients"] & split),
        "quantize_secondary": either(
            "quantize_secondary", known["quantize_secondary"] & (secondary > 0)
        ),
    }


def _either(
    name: str,
    columns: Mapping[str, Array],
    wished: Mapping[str, Array],
    otherwise: Mapping[str, Array],
) -> Array:
    if name not in wished:
        return otherwise[name]
    if np.all(wished[name]):
        return columns[name]
    return np.where(wished[name], columns[name], otherwise[name])


def _presets(placement: Array, columns: Mapping[str, Array]) -> dict[str, Array]:
    """What the presets stand for, asked once for each that occurs with its dp and tp."""
    topology = Topology(int(columns["gpus_per_node"]), int(columns["ranks_per_pair"]))
    names = sorted(PRESETS)
    preset = np.searchsorted(names, placement)
    tp = columns["tp"].astype(np.int64)
    dp = np.maximum(columns["dp"].astype(np.int64), 1)  # 0: another rule's business
    widest = int(tp.max(initial=1)) + 1
    keys, which = np.unique((preset * widest + tp) + len(names) * widest * dp, return_inverse=True)
    wishes = []
    for key in keys.tolist():
        replicas, rest = divmod(key, len(names) * widest)
        index, width = divmod(rest, widest)
        wishes.append(preset_wishes(names[index], replicas, width, topology))

    def column(name: str, dtype: type) -> Array:
        values: Array = np.array([getattr(wish, name) or 0 for wish in wishes], dtype=dtype)
        return values[which]

    return {name: column(name, float) for name in DEGREES} | {
        name: column(name, bool) for name in QUANTIZED
    }


def one_placement(parameters: Mapping[str, Parameter]) -> list[Rule]:
    """A rule against placements together with stages of ZeRO, where a space has the former."""
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
) -> list[Rule]:
    """A rule that keeps the first of several spellings of one placement.

    ``mics`` is ``zero3`` on a single node, for example, and with one replica all are the same.
    Spaces that search no more than ZeRO's stages are left as they list them.
    """
    spelling = [name for name in parameters if name in _SPELLING]
    context = {"num_nodes", "tp", "pp"}
    asked = list(spelling)
    while asked:  # what decides whether a parameter is active
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
    firsts = _Firsts(own, spellings, others, derive)
    text = "the first of several spellings of one placement"
    return [Rule("placement_counts_once", text, frozenset(p.name for p in own), firsts.holds)]


@dataclass(frozen=True)
class _Firsts:
    """Which spellings are the first of theirs, in a table made when it is first needed.

    Attributes:
        parameters: of the table: those that placements depend on, then those that spell them.
        spellings: combinations of the latter.
        others: a value for all parameters that do not matter.
        derive: facts of raw configurations.
    """

    parameters: Sequence[Parameter]
    spellings: int
    others: Mapping[str, Array]
    derive: Callable[[Mapping[str, Array]], Facts]

    def holds(self, facts: Facts) -> Array:
        digits = []
        for parameter in self.parameters:
            order = np.argsort(parameter.array)
            found = np.searchsorted(parameter.array, facts.raw[parameter.name], sorter=order)
            digits.append(order[found])
        return np.asarray(self._table[tuple(digits)])

    @cached_property
    def _table(self) -> Array:
        sizes = [len(parameter.values) for parameter in self.parameters]
        axes = np.ogrid[tuple(slice(size) for size in sizes)]
        raw = {p.name: p.array[axis] for p, axis in zip(self.parameters, axes, strict=True)}
        meanings = _meanings(self.derive({**self.others, **raw}))
        meanings = np.broadcast_to(meanings, sizes).reshape(-1, self.spellings)
        order = np.argsort(meanings, axis=1, kind="stable")
        ordered = np.take_along_axis(meanings, order, axis=1)
        first = np.ones(ordered.shape, dtype=bool)
        first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        table = np.empty_like(first)
        np.put_along_axis(table, order, first, axis=1)
        return table.reshape(sizes)


def _meanings(facts: Facts) -> Array:
    """A number for each configuration, equal where placements are."""
    columns = facts.columns
    alone = columns["dp"] == 1
    quantized = columns["quantize_gradients"]
    named = facts.active.get("placement", np.asarray("placement" in facts.raw))
    parts = [
        *(columns[name] for name in DEGREES),
        columns["quantize_weights"] & ~alone,
        quantized & ~alone,
        columns["quantize_secondary"],
        (columns["refresh_secondary"] == "step") | (columns["secondary_shard"] == 0),
        (columns["reduce_precision"] == "fp32") | quantized | alone,
        named & (columns["zero_stage"] > 0),  # invalid, so no spelling of anything
    ]
    meaning: Array = np.zeros((), dtype=np.int64)
    for part in parts:
        values, which = np.unique(part, return_inverse=True)
        meaning = meaning * len(values) + which
    return meaning
