"""What a configuration must satisfy, once: read by the trainer, and by spaces as their rules.

Conditions are written in the constraint grammar, over the names of configurations, models and what
follows from them: one row or a column of each. A trainer's own refusals come with a message that
has the values and a remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from trainer.axes import GRID, beside_dp
from trainer.rules.expression import Expression, ValueType, constant, parse

DEGREES = ("weight_shard", "secondary_shard", "gradient_shard", "optimizer_shard")
QUANTIZED = ("quantize_weights", "quantize_gradients", "quantize_secondary")
TYPES: dict[str, ValueType] = {
    **dict.fromkeys(
        (
            *("world_size", "dp", "tp", "pp", "vpp", "gas", "num_nodes", "cluster_nodes"),
            *("gpus_per_node", "num_heads", "num_kv_heads", "num_layers", "ffn_hidden_size"),
            *("vocab_size", "seq_length", "hidden_size", "mbs", "recompute_every"),
            *("first_stage_layers", "last_stage_layers"),
            *(*GRID, *DEGREES),
        ),
        "number",
    ),
    **dict.fromkeys(
        ("sequence_parallel", "time_communication", "compile", "tune_kernels", *QUANTIZED),
        "boolean",
    ),
    **dict.fromkeys(("recompute", "precision", "reduce_gradients", "pipeline_schedule"), "text"),
}
"""Every name that requirements read."""


@dataclass(frozen=True)
class Requirement:
    """One condition that a configuration must satisfy.

    Attributes:
        name: as ``meshtune check`` lists it.
        text: the condition.
        refusal: what the trainer says where it is not met; values stand in braces. Empty for what
            only a search leaves out, although a trainer could run it.
        builtin_only: of the built-in trainer; others may pad, say.
        axes: parallel axes that the condition reads.
    """

    name: str
    text: str
    refusal: str = ""
    builtin_only: bool = False
    axes: tuple[str, ...] = ()

    @cached_property
    def condition(self) -> Expression:
        return parse(self.text, {**dict.fromkeys(self.axes, "number"), **TYPES})


def requirements(own_axes: Sequence[str] = ()) -> tuple[Requirement, ...]:
    """All of them, in the order in which they are asked.

    Args:
        own_axes: parallel axes beside those that every job has: of
            ``trainer.axes.FURTHER_AXES`` or ``GRID``, or such as only a user's own trainer knows.
    """
    return _requirements(tuple(own_axes))


@cache
def _requirements(own_axes: tuple[str, ...]) -> tuple[Requirement, ...]:
    axes = beside_dp(own_axes)
    whole_replicas = Requirement(
        f"world_by_{'_'.join(axes)}",
        f"world_size % ({' * '.join(axes)}) == 0",
        f"{' * '.join(f'{name} {{{name}}}' for name in axes)} does not divide the number of ranks, "
        "{world_size}",
        axes=axes,
    )
    context = _CONTEXT if "cp" in own_axes else ()
    grid = _OF_GRID if {*GRID} <= {*own_axes} else ()
    return (whole_replicas, *_OTHERS, *context, *_placed("cp" in own_axes), *grid)


_CONTEXT = (
    # Rank r has chunks r and 2 cp - 1 - r of each sequence, so that all have as much to attend to.
    Requirement(
        "sequence_by_cp",
        "cp == 1 or seq_length % (2 * cp) == 0",
        "not divisible: seq_length {seq_length} by 2 * cp {cp}",
        builtin_only=True,
        axes=("cp",),
    ),
    Requirement(
        "sequence_by_tp_cp",
        "not sequence_parallel or seq_length % (tp * cp) == 0",
        "not divisible: seq_length {seq_length} by tp {tp} * cp {cp} (sequence_parallel)",
        builtin_only=True,
        axes=("cp",),
    ),
    Requirement(
        "cp_without_compile",
        "not compile or cp == 1",
        "compile beside cp {cp}: ring attention is no one graph; set compile: false",
        builtin_only=True,
        axes=("cp",),
    ),
)
_FP8 = tuple(
    Requirement(
        f"fp8_{name}",
        f"precision != 'fp8' or {condition}",
        f"precision fp8 beside {words}; change it, or set precision: bf16",
        builtin_only=True,
    )
    for name, condition, words in (
        (
            "sizes",
            "hidden_size % (16 * tp) == 0 and ffn_hidden_size % (16 * tp) == 0"
            " and 2 * hidden_size * num_kv_heads % (16 * num_heads * tp) == 0",
            "hidden_size {hidden_size}, ffn_hidden_size {ffn_hidden_size}, num_kv_heads "
            "{num_kv_heads}: its kernels take rows of 16 numbers, of a part that tp {tp} leaves",
        ),
        (
            "kernels",
            "not tune_kernels and not compile",
            "tune_kernels {tune_kernels}, compile {compile}, which make products of the other "
            "formats only",
        ),
        (
            "grid",
            "gx * gy * gz == 1",
            "the grid gx {gx}, gy {gy}, gz {gz}: it has products of its own",
        ),
    )
)
_ZERO_BUBBLE = tuple(
    Requirement(
        f"zero_bubble_{name}",
        f"pp == 1 or pipeline_schedule != 'InterleavedZeroBubble' or {condition}",
        f"pipeline_schedule InterleavedZeroBubble beside {words}; change it, or set "
        "pipeline_schedule: 1F1B",
        builtin_only=True,
    )
    for name, condition, words in (
        ("gas", "gas % pp == 0", "gas {gas}, which pp {pp} does not divide"),
        (
            "gradients",
            "gradient_shard == 1",
            "gradient_shard {gradient_shard}: FSDP2 is not given gradients of weights later than "
            "those of inputs",
        ),
        (
            "layers",
            "recompute != 'selective' and not compile and precision != 'fp8'",
            "recompute {recompute}, compile {compile}, precision {precision}: its products are not "
            "by themselves",
        ),
        (
            "grid",
            "gx * gy * gz == 1",
            "the grid gx {gx}, gy {gy}, gz {gz}, whose order is its own",
        ),
    )
)
# Stages whose layers are not given, and what they share.
_SHARING = "(pp - (1 if first_stage_layers > 0 else 0) - (1 if last_stage_layers > 0 else 0))"
_LEFT = "(num_layers - first_stage_layers - last_stage_layers)"
_OTHERS = (
    Requirement("tp_within_node", "gpus_per_node % tp == 0"),
    Requirement(
        "tune_without_compile",
        "not tune_kernels or not compile",
        "tune_kernels beside compile: the compiler chooses kernels itself; set one to false",
        builtin_only=True,
    ),
    Requirement("nodes_in_cluster", "num_nodes <= cluster_nodes"),
    Requirement(
        "heads_by_tp", "num_heads % tp == 0", "not divisible: num_heads {num_heads} by tp {tp}"
    ),
    Requirement(
        "layers_by_stages",
        "first_stage_layers + last_stage_layers > 0 or num_layers % (pp * vpp) == 0",
        "not divisible: num_layers {num_layers} by pp {pp} * vpp {vpp}; give first_stage_layers or "
        "last_stage_layers what leaves the other stages equal shares",
    ),
    Requirement(
        "stage_layers_need_pp",
        "pp > 1 or first_stage_layers + last_stage_layers == 0",
        "first_stage_layers {first_stage_layers}, last_stage_layers {last_stage_layers} need a "
        "pipeline: pp is {pp}; set both to 0",
        builtin_only=True,
    ),
    Requirement(
        "stage_layers_by_vpp",
        "first_stage_layers % vpp == 0 and last_stage_layers % vpp == 0",
        "not divisible: first_stage_layers {first_stage_layers} or last_stage_layers "
        "{last_stage_layers} by vpp {vpp}, a stage's chunks",
        builtin_only=True,
    ),
    Requirement(
        "layers_by_other_stages",
        f"first_stage_layers + last_stage_layers == 0 or ({_LEFT} > 0 and {_LEFT} % ({_SHARING} * "
        f"vpp) == 0 if {_SHARING} > 0 else {_LEFT} == 0)",
        "first_stage_layers {first_stage_layers} and last_stage_layers {last_stage_layers} of "
        "num_layers {num_layers}: what they leave is no equal share for each other stage of pp "
        "{pp} * vpp {vpp}; change one of them",
        builtin_only=True,
    ),
    Requirement(
        "vpp_needs_pp", "vpp == 1 or pp > 1", "vpp {vpp} needs a pipeline: pp is {pp}; set vpp: 1"
    ),
    # Interleaved 1F1B hands micro-batches out in rounds of pp.
    Requirement(
        "interleaved_gas",
        "vpp == 1 or gas % pp == 0",
        "not divisible: gas {gas} by pp {pp} (interleaved schedule, vpp {vpp})",
    ),
    Requirement("schedule_needs_pp", "pipeline_schedule == '1F1B' or pp > 1", builtin_only=True),
    *_ZERO_BUBBLE,
    *_FP8,
    # With tp 1 it changes nothing: the same configuration would be tried twice.
    Requirement("sequence_parallel_needs_tp", "not sequence_parallel or tp > 1"),
    Requirement(
        "sequence_by_tp",
        "not sequence_parallel or seq_length % tp == 0",
        "not divisible: seq_length {seq_length} by tp {tp} (sequence_parallel)",
    ),
    Requirement(
        "kv_heads_by_tp",
        "num_kv_heads % tp == 0",
        "not divisible: num_kv_heads {num_kv_heads} by tp {tp}",
        builtin_only=True,
    ),
    Requirement(
        "ffn_by_tp",
        "ffn_hidden_size % tp == 0",
        "not divisible: ffn_hidden_size {ffn_hidden_size} by tp {tp}",
        builtin_only=True,
    ),
    Requirement(
        "vocab_by_tp",
        "vocab_size % tp == 0",
        "not divisible: vocab_size {vocab_size} by tp {tp}",
        builtin_only=True,
    ),
)


def _placed(context: bool) -> tuple[Requirement, ...]:
    """Of placements, over all ranks that hold the same weights.

    Args:
        context: whether those of context parallelism are counted among them.
    """
    ranks, said = ("(dp * cp)", "dp {dp} * cp {cp}") if context else ("dp", "dp {dp}")
    axes = ("cp",) if context else ()
    split = [
        Requirement(
            f"{state}_by_dp",
            f"{absent}{ranks} % {state_shard} == 0",
            f"{state_shard} {{{state_shard}}} does not divide {said}; make {state_shard} a divisor "
            "of it",
            axes=axes,
        )
        for state, state_shard, absent in (
            ("weights", "weight_shard", ""),
            ("gradients", "gradient_shard", ""),
            ("secondary", "secondary_shard", "secondary_shard == 0 or "),
            ("optimizer", "optimizer_shard", ""),
        )
    ]
    # With one replica nothing is on its way.
    quantized = [
        Requirement(
            f"{name}_needs_split",
            f"not {name} or gradient_shard > 1 or {otherwise}{ranks} == 1",
            f"{name} needs split gradients, but gradient_shard is 1; raise gradient_shard, or set "
            f"{name}: false",
            builtin_only=True,
            axes=axes,
        )
        # The grid gathers weights along gz, whatever the placement.
        for name, otherwise in (("quantize_weights", "gz > 1 or "), ("quantize_gradients", ""))
    ]
    return (*split, *_NESTED, *quantized, _REDUCED_ONCE)


# Elsewhere it changes nothing, as sequence parallelism with tp 1.
_REDUCED_ONCE = Requirement(
    "reduce_gradients_needs_split",
    "reduce_gradients == 'micro_batch' or (gradient_shard > 1 and gas > 1)",
    builtin_only=True,
)
_NESTED = (
    # Xu et al. 2025, section V: optimizer states >= gradients >= weights, each within the next,
    # else a rank would hold states of parameters that it has no part in.
    Requirement(
        "gradients_nest_weights",
        "gradient_shard % weight_shard == 0",
        "weight_shard {weight_shard} does not divide gradient_shard {gradient_shard}; make "
        "weight_shard a divisor of it, or change gradient_shard",
    ),
    Requirement(
        "optimizer_nests_gradients",
        "optimizer_shard % gradient_shard == 0",
        "gradient_shard {gradient_shard} does not divide optimizer_shard {optimizer_shard}; make "
        "gradient_shard a divisor of it, or change optimizer_shard",
    ),
    Requirement(
        "secondary_needs_split_weights",
        "secondary_shard == 0 or weight_shard > 1",
        "secondary_shard {secondary_shard}: a secondary copy needs split weights, but weight_shard "
        "is {weight_shard}; raise weight_shard, or set secondary_shard: 0",
    ),
    Requirement(
        "quantize_secondary_needs_copy",
        "not quantize_secondary or secondary_shard > 0",
        "quantize_secondary is set, but there is no secondary copy: set secondary_shard",
    ),
)
_OF_GRID = (
    *(
        Requirement(
            f"grid_{name}",
            condition,
            f"not divisible: {words}",
            builtin_only=True,
        )
        for name, condition, words in (
            ("heads", "num_kv_heads % gx == 0", "num_kv_heads {num_kv_heads} by gx {gx}"),
            (
                "hidden",
                "hidden_size % (gy * gz) == 0 and hidden_size % (gx * gz) == 0",
                "hidden_size {hidden_size} by gx {gx} * gz {gz} or gy {gy} * gz {gz}",
            ),
            (
                "ffn",
                "ffn_hidden_size % (gx * gz) == 0",
                "ffn_hidden_size {ffn_hidden_size} by gx {gx} * gz {gz}",
            ),
            (
                "vocab",
                "vocab_size % (gx * gz) == 0",
                "vocab_size {vocab_size} by gx {gx} * gz {gz}",
            ),
            ("sequences", "mbs % gz == 0", "mbs {mbs} by gz {gz}, which share its sequences"),
            (
                "key_values",
                "2 * hidden_size * num_kv_heads % (num_heads * gx * gz) == 0",
                "rows of keys and values, 2 * hidden_size {hidden_size} * num_kv_heads "
                "{num_kv_heads} / num_heads {num_heads}, by gx {gx} * gz {gz}",
            ),
        )
    ),
    Requirement(
        "grid_without_tp",
        "tp == 1 or gx * gy * gz == 1",
        "tp {tp} beside the grid gx {gx}, gy {gy}, gz {gz}: gx is its tensor parallelism; set "
        "tp: 1",
        builtin_only=True,
    ),
    Requirement(
        "grid_by_placement",
        "gradient_shard == 1 or gx * gy * gz == 1",
        "gradient_shard {gradient_shard} beside the grid gx {gx}, gy {gy}, gz {gz}: gz splits "
        "weights and gradients, the replicas optimizer states; set zero_stage to 0 or 1",
        builtin_only=True,
    ),
    Requirement(
        "grid_without_compile",
        "not compile or gx * gy * gz == 1",
        "compile beside the grid gx {gx}, gy {gy}, gz {gz}: its layers are no one graph; set "
        "compile: false",
        builtin_only=True,
    ),
    Requirement(
        "grid_without_cp",
        "cp == 1 or gx * gy * gz == 1",
        "cp {cp} beside the grid gx {gx}, gy {gy}, gz {gz}: sequences are split along one axis "
        "only; set cp: 1",
        builtin_only=True,
        axes=("cp",),
    ),
)
REQUIREMENTS = requirements()
# Spaces can switch these off.
SWITCHED_OFF_BY = {"tp_across_nodes": "tp_within_node", "uneven_layers": "layers_by_stages"}


def refusal(requirements: Iterable[Requirement], values: Mapping[str, Any]) -> str | None:
    """Why a trainer refuses a configuration; None if it meets all that it has the values for.

    Args:
        requirements: in the order in which they are asked; those without words are not.
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
