"""Which parameters of a space the cost model reads, and the jobs that their values make."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from search_spaces import Facts, SearchSpace, framework_named
from trainer.plan.axes.mesh import GRID, PRICED_AXES, RANK_ORDERS, beside_dp, is_pp_inside
from trainer.plan.formats import Format
from trainer.plan.jobs import (
    BY_HABIT,
    DISPATCHERS,
    GRAPHS,
    NO_GRAPHS,
    RECOMPUTE,
    SCHEDULES,
    Array,
    Jobs,
    jobs,
)
from trainer.plan.layouts import NO_LAYOUT
from trainer.plan.model import ModelConfig
from trainer.plan.stages import COUNTED, GIVEN, LAYOUT

NEEDED = (*beside_dp(), "vpp", "mbs", "gas", "dp", "world_size", "num_layers")
EXPERTS = ("ep", "etp", "moe_token_dispatcher", "moe_comm_overlap")  # that only mixtures have
FP8 = ("fp8", "mxfp8")
"""Words for the precision of a user's own trainer whose products are in 8 bits, priced alike."""
# Parameters of others' trainers, whose values may be words of their own.
_WORDS: dict[str, tuple[str | bool, ...]] = {
    "moe_token_dispatcher": (*DISPATCHERS,),
    "moe_comm_overlap": (False, True),
    "cuda_graphs": (*GRAPHS,),
    "rank_order": RANK_ORDERS,
}
# Every name that a job's columns are made of.
_READ = (
    *NEEDED,
    *("gx", *PRICED_AXES),
    *("weight_shard", "gradient_shard", "optimizer_shard", "secondary_shard", "zero_stage"),
    *EXPERTS,
    *("placement", "engine", "sequence_parallel", "recompute", "precision"),
    *("quantize_weights", "quantize_gradients", "quantize_secondary", "reduce_gradients"),
    *("pipeline_schedule", "rank_order", "cuda_graphs"),
)


def jobs_from(
    space: SearchSpace, shape: ModelConfig, engines: Collection[str], facts: Facts, count: int
) -> Jobs:
    """The jobs of configurations.

    Args:
        space: of the configurations.
        shape: of its model.
        engines: that it searches, in the order of their numbers.
        facts: of the configurations, as columns.
        count: configurations.
    """
    known = facts.columns
    columns: dict[str, Any] = {name: known[name] for name in NEEDED if name != "num_layers"}
    for name in ("weight_shard", "gradient_shard", "optimizer_shard", "secondary_shard"):
        if name in known:
            columns[name] = known[name]
    columns["zero_stage"] = known.get("zero_stage", 0)
    if shape.mixture is not None and "ep" not in space.program.axes:
        columns["ep"] = known.get("ep", 1)
        columns["etp"] = known.get("etp", known["tp"])
    precision = known.get("precision", "bf16")
    columns["fp8"] = np.isin(precision, FP8)
    builtin = space.trainer.builtin
    if builtin is not None and builtin.ddp_bucket_size is not None:
        columns["bucket_elements"] = builtin.ddp_bucket_size
    documents = builtin and builtin.documents
    columns["masks_documents"] = bool(documents and documents.reset_attention_mask)
    axes = space.program.axes
    columns |= {name: known[name] if name in axes else 1 for name in PRICED_AXES}
    if "gx" in axes:
        columns["tp"] = known["tp"] * known["gx"]
    if len(engines) > 1:
        numbered = enumerate(engines)
        columns["engine"] = sum(np.where(known["engine"] == w, n, 0) for n, w in numbered)
    columns["sequence_parallel"] = known.get("sequence_parallel", False)
    columns |= {name: facts.numbers(name, 0.0) for name in GIVEN}
    columns |= {name: facts.numbers(name, -1.0) for name in COUNTED}
    columns[LAYOUT] = facts.words(LAYOUT, NO_LAYOUT)
    columns["recompute"] = _coded(known.get("recompute"), RECOMPUTE)
    columns["reduces_once"] = known.get("reduce_gradients", "micro_batch") == "step"
    columns["schedule"] = _coded(known.get("pipeline_schedule"), SCHEDULES)
    columns["pp_inside"] = is_pp_inside(known.get("rank_order", ""))
    said = {name: known.get(name) for name in _WORDS if _understood(space, name)}
    columns["dispatcher"] = _coded(said.get("moe_token_dispatcher"), DISPATCHERS, BY_HABIT)
    columns["overlaps_dispatch"] = said.get("moe_comm_overlap", False)
    columns["graphs"] = _coded(said.get("cuda_graphs"), GRAPHS, NO_GRAPHS)
    columns["element_bytes"] = np.where(precision == "fp32", 4.0, 2.0)
    for name, key, narrow in (
        ("gather_bits", "quantize_weights", Format.INT8),
        ("reduce_bits", "quantize_gradients", Format.INT4),
        ("secondary_bits", "quantize_secondary", Format.INT8),
    ):
        columns[name] = np.where(known.get(key, False), narrow.bits_with_scales, 0.0)
    columns = {name: np.broadcast_to(column, (count,)) for name, column in columns.items()}
    return jobs(columns, shape)


def in_8_bits(space: SearchSpace) -> bool:
    """Whether a space searches FP8."""
    searched = space.parameters.get("precision")
    return searched is not None and not {*FP8}.isdisjoint(searched.values)


def _understood(space: SearchSpace, name: str) -> bool:
    """Whether a space has the parameter, and all of its values have a price."""
    found = space.parameters.get(name)
    return found is not None and all(
        type(value) is type(_WORDS[name][0]) and value in _WORDS[name] for value in found.values
    )


def _coded(words: Any, codes: Mapping[str, float], otherwise: float = 0) -> Array:
    """The numbers that words stand for; ``otherwise`` where there is none."""
    words = np.asarray("" if words is None else words)
    return np.asarray(
        sum((np.where(words == w, n - otherwise, 0) for w, n in codes.items()), otherwise)
    )


def unpriced_axes(space: SearchSpace) -> list[str]:
    """Parallel axes that the cost model does not know, and that are not 1 everywhere."""
    unknown = [name for name in space.program.axes if name not in (*PRICED_AXES, *GRID)]
    return [name for name in unknown if set(space.parameters[name].values) != {1}]


def unpriced_parameters(space: SearchSpace) -> list[str]:
    """Parameters of several values in which the cost model sees no difference.

    Those of a condition or an axis count as seen, and so do all that a rule reads only.
    """
    mixed = space.model is not None and space.model.mixture is not None
    read = [name for name in _READ if mixed or name not in EXPERTS]
    read = [name for name in read if name not in _WORDS or _understood(space, name)]
    read += framework_named(space.program.framework).stage_settings
    seen = frozenset[str]().union(*(space.reads.get(name, frozenset()) for name in read))
    return [n for n, p in space.parameters.items() if len(p.values) > 1 and n not in seen]
