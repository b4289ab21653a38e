"""Placement presets, and what a configuration's own settings make of them. Torch-free.

Settings override the preset. Unset degrees follow: gradients are sharded at least as weights,
optimizer states at least as gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from foundation.documents import read_document
from trainer.plan.fields import Preset
from trainer.plan.formats import Format
from trainer.plan.limits import ConfigError
from trainer.plan.placement import Placement, Topology, shared_within
from trainer.plan.rules.catalog import requirements
from trainer.plan.rules.requirement import QUANTIZED, refusal
from trainer.plan.states import DEGREES

PRESETS: tuple[Preset, ...] = get_args(Preset)
ZERO_PRESETS = PRESETS[:4]  # by the number of ZeRO's stage
Value = Any  # one, or a numpy column of them
Values = Mapping[str, Value]

_SPANS = ("no copy", "one", "pair", "node", "all")
"""Ranks over which presets shard a state; a pair is the node where a card is one device."""
_STATED = read_document(Path(__file__).with_suffix(".yaml")).root.plain()
_NAMES = np.array(sorted(PRESETS))
_TABLE = {
    state: np.array([_SPANS.index(_STATED[name].get(state, _SPANS[0])) for name in _NAMES])
    for state in ("weights", "gradients", "optimizer", "secondary")
}
_QUANTIZED = np.array([_STATED[name].get("quantized", False) for name in _NAMES])
_QUANTIZED_COPY = np.array([_STATED[name].get("quantized_copy", False) for name in _NAMES])


def resolve_presets(
    said: Values, counts: Values, dp: Value, apart: Value, topology: Topology
) -> dict[str, Value]:
    """Final ``placement``, ``DEGREES`` and ``QUANTIZED`` of configurations, by name.

    Args:
        said: settings; ``zero_stage`` stands for a preset where ``placement`` is not set.
        counts: where each setting is set, by name; a missing name is set nowhere.
        apart: distance of two data-parallel ranks in rank numbers.
    """

    def either(name: str, otherwise: Value) -> Value:
        if name not in counts:
            return otherwise
        if np.all(counts[name]):
            return said[name]
        return np.where(counts[name], said[name], otherwise)

    stage = np.asarray(said["zero_stage"]).astype(np.int64)
    placement = either("placement", np.array(ZERO_PRESETS)[stage])
    which = np.searchsorted(_NAMES, placement)
    dp = np.maximum(np.asarray(dp).astype(np.int64), 1)  # another requirement refuses 0
    apart = np.asarray(apart).astype(np.int64)
    node = shared_within(topology.ranks_per_node, dp, apart)
    pair = shared_within(topology.ranks_per_pair, dp, apart)
    spans = (0, 1, np.where(pair > 1, pair, node), node, dp)
    degree = {s: np.choose(of[which], spans).astype(np.float64) for s, of in _TABLE.items()}
    meant = np.where(degree["weights"] > 1, degree["secondary"], 0)
    weights = either("weight_shard", degree["weights"])
    gradients = either("gradient_shard", np.maximum(degree["gradients"], weights))
    optimizer = either("optimizer_shard", np.maximum(degree["optimizer"], gradients))
    copy = either("secondary_shard", np.where(weights > 1, meant, 0.0))
    quantized_copy = (meant > 0) & _QUANTIZED_COPY[which] & (copy > 0)
    quantized = _QUANTIZED[which] & (gradients > 1)
    return {
        "placement": placement,
        "weight_shard": weights,
        "secondary_shard": copy,
        "gradient_shard": gradients,
        "optimizer_shard": optimizer,
        "quantize_weights": either("quantize_weights", quantized),
        "quantize_gradients": either("quantize_gradients", quantized),
        "quantize_secondary": either("quantize_secondary", quantized_copy),
    }


def place(
    preset: Preset,
    wishes: Mapping[str, int | bool | None],
    dp: int,
    apart: int,
    topology: Topology,
    precision: Format,
    reduce_precision: Format = Format.FP32,
    cp: int = 1,
    gz: int = 1,
) -> Placement:
    """The built-in trainer's placement: a preset, overridden by the configuration.

    Where weights are sharded as the optimizer states are, they are the master weights, cast when
    gathered.

    Args:
        wishes: by the names of ``DEGREES`` and ``QUANTIZED``; None leaves the preset's.
        apart: distance of two data-parallel ranks in rank numbers.

    Raises ConfigError if the degrees break a requirement.
    """
    wished = {name: wish for name, wish in wishes.items() if wish is not None}
    said, given = {"zero_stage": 0, "placement": preset, **wished}, {"placement", *wished}
    found = resolve_presets(said, dict.fromkeys(given, True), dp * cp, apart, topology)
    degrees = {name: int(found[name]) for name in DEGREES}
    quantized = {name: bool(found[name]) for name in QUANTIZED}
    facts = {"dp": dp, "cp": cp, "gz": gz, **degrees, **quantized}
    if broken := refusal(requirements(*(["cp"] if cp > 1 else [])), facts):
        raise ConfigError(broken)
    return Placement(
        dp=dp * cp,
        **degrees,
        gather_format=Format.INT8 if quantized["quantize_weights"] else precision,
        reduce_format=Format.INT4 if quantized["quantize_gradients"] else reduce_precision,
        secondary_format=Format.INT8 if quantized["quantize_secondary"] else precision,
    )
