"""What makes a configuration valid: built-in rules, written in the constraint grammar itself.

A rule that needs a fact which the space does not have (no model, no such parameter) is left out.
Where a parameter is inactive and the trainer has no default for it, rules that name it hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from search_spaces.language.expression import Array, Expression, ValueType, parse

# Any trainer of this family needs these.
COMMON_RULES = {
    "world_by_tp_pp": "world_size % (tp * pp) == 0",
    "tp_within_node": "gpus_per_node % tp == 0",
    "nodes_in_cluster": "num_nodes <= cluster_nodes",
    "heads_by_tp": "num_heads % tp == 0",
    "layers_by_stages": "num_layers % (pp * vpp) == 0",
    "vpp_needs_pp": "vpp == 1 or pp > 1",
    # Interleaved 1F1B hands micro-batches out in rounds of pp.
    "interleaved_gas": "vpp == 1 or gas % pp == 0",
    # With tp 1 it changes nothing: the same configuration would be tried twice.
    "sequence_parallel_needs_tp": "not sequence_parallel or tp > 1",
    "sequence_by_tp": "not sequence_parallel or seq_length % tp == 0",
    "weights_by_dp": "dp % weight_shard == 0",
    "gradients_by_dp": "dp % gradient_shard == 0",
    "secondary_by_dp": "secondary_shard == 0 or dp % secondary_shard == 0",
    "optimizer_by_dp": "dp % optimizer_shard == 0",
    # Xu et al. 2025, section V: optimizer states >= gradients >= weights, each within the next.
    "gradients_nest_weights": "gradient_shard % weight_shard == 0",
    "optimizer_nests_gradients": "optimizer_shard % gradient_shard == 0",
    "secondary_needs_split_weights": "secondary_shard == 0 or weight_shard > 1",
    "quantize_secondary_needs_copy": "not quantize_secondary or secondary_shard > 0",
}
# The built-in trainer does not pad; others may.
BUILTIN_TRAINER_RULES = {
    "kv_heads_by_tp": "num_kv_heads % tp == 0",
    "ffn_by_tp": "ffn_hidden_size % tp == 0",
    "vocab_by_tp": "vocab_size % tp == 0",
    # With one replica nothing is on its way.
    "quantize_weights_needs_split": "not quantize_weights or gradient_shard > 1 or dp == 1",
    "quantize_gradients_needs_split": "not quantize_gradients or gradient_shard > 1 or dp == 1",
}
SWITCHED_OFF_BY = {"tp_across_nodes": "tp_within_node"}


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
    """The built-in rules that the space has the facts for."""
    off = {SWITCHED_OFF_BY[name] for name in allow}
    texts = COMMON_RULES if own_trainer else {**COMMON_RULES, **BUILTIN_TRAINER_RULES}
    rules = []
    for name, text in texts.items():
        expression = parse(text, _TYPES)
        if name not in off and expression.names <= types.keys():
            rules.append(expressed(name, expression))
    return rules


# Every name in the rules above. Their types are fixed: see parameters._TYPES.
_TYPES: dict[str, ValueType] = {
    **dict.fromkeys(
        (
            *("world_size", "dp", "tp", "pp", "vpp", "gas", "num_nodes", "cluster_nodes"),
            *("gpus_per_node", "num_heads", "num_kv_heads", "num_layers", "ffn_hidden_size"),
            *("vocab_size", "seq_length", "weight_shard", "gradient_shard", "secondary_shard"),
            "optimizer_shard",
        ),
        "number",
    ),
    "sequence_parallel": "boolean",
    **dict.fromkeys(("quantize_weights", "quantize_gradients", "quantize_secondary"), "boolean"),
}
