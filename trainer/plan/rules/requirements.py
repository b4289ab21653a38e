"""What a configuration must satisfy, once: read by the trainer, and by spaces as their rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from trainer.plan.axes import GRID, beside_dp
from trainer.plan.rules.grid import OF_GRID
from trainer.plan.rules.pipeline import PIPELINE
from trainer.plan.rules.requirement import Requirement


def requirements(own_axes: Sequence[str] = ()) -> tuple[Requirement, ...]:
    """All of them, in the order in which they are asked.

    Args:
        own_axes: parallel axes beside those that every job has: of
            ``trainer.plan.axes.FURTHER_AXES`` or ``GRID``, or a trainer's own.
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
    grid = OF_GRID if {*GRID} <= {*own_axes} else ()
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
    *PIPELINE,
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
REQUIREMENTS = requirements()
# Spaces can switch these off.
SWITCHED_OFF_BY = {"tp_across_nodes": "tp_within_node", "uneven_layers": "layers_by_stages"}
