"""Tensor parallelism: each layer's matrices split over ranks (Shoeybi et al. 2019, section 3).

Queries, keys, values and the first product of the feed-forward part are split by their outputs, the
products after them by their inputs, so that a layer sums twice in each pass. Heads, the inner size
and the vocabulary are split alike. With sequence parallelism (Korthikanti et al. 2022) activations
between the products are split by sequence, and a sum becomes a reduce-scatter and an all-gather.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trainer.plan.axes.axis import Axis, Exchanges
from trainer.plan.axes.mesh import Size
from trainer.plan.exchange import Exchange, Habits, Operation, Pass, Work
from trainer.plan.jobs import STEP_GRAPHS, Array, Jobs, Mask
from trainer.plan.rules.requirement import Requirement

PASS_SUMS = 2
"""Sums over the ranks in one pass of a layer: of outputs where inputs are split, of inputs'
gradients elsewhere."""
FURTHER_GATHERS = 2
"""With sequence parallelism a backward pass gathers the inputs of the two products split by outputs
again, before their weights' gradients."""

REQUIREMENTS = (
    Requirement("tp_within_node", "gpus_per_node % tp == 0"),
    Requirement(
        "heads_by_tp", "num_heads % tp == 0", "not divisible: num_heads {num_heads} by tp {tp}"
    ),
    Requirement(
        "sequence_by_tp",
        "not sequence_parallel or seq_length % tp == 0",
        "not divisible: seq_length {seq_length} by tp {tp} (sequence_parallel)",
    ),
    *(
        Requirement(
            f"{name}_by_tp",
            f"{size} % tp == 0",
            f"not divisible: {size} {{{size}}} by tp {{tp}}",
            builtin_only=True,
        )
        for name, size in (
            ("kv_heads", "num_kv_heads"),
            ("ffn", "ffn_hidden_size"),
            ("vocab", "vocab_size"),
        )
    ),
)


def splits_sequence(jobs: Jobs, habits: Habits) -> Mask:
    """Whether activations between layers are split over the ranks."""
    return np.asarray(jobs.options.sequence_parallel | habits.sequence_parallel)


def sums(jobs: Jobs, habits: Habits, counts: Mapping[Pass, tuple[Size, Size]]) -> Exchanges:
    """Sums of activations over the ranks.

    Args:
        jobs: whose.
        habits: of their framework.
        counts: by pass, sums, and gathers where the sequence is split: a sum is a reduce-scatter
            then, and gathers are those of the sums and further ones.
    """
    group, split = jobs.layout.axes.group("tp"), splits_sequence(jobs, habits)
    num_bytes = jobs.activation_bytes
    behind: Work = "products" if habits.overlaps_tensor else ""
    made: list[Exchange] = []
    for within, (count, gathers) in counts.items():
        each: tuple[tuple[Operation, Size], ...] = (
            ("all_gather", np.where(split, gathers, 0.0)),
            ("reduce_scatter", np.where(split, count, 0.0)),
            ("all_reduce", np.where(split, 0.0, count)),
        )
        made += [Exchange("tensor", how, group, num_bytes, n, within, behind) for how, n in each]
    return tuple(made)


def layer_exchanges(jobs: Jobs, habits: Habits, repeated_gathers: float | None = None) -> Exchanges:
    """Sums of activations in both passes of a layer, and those that full recomputation repeats.

    Args:
        jobs: whose.
        habits: of their framework.
        repeated_gathers: of the repeated pass with sequence parallelism; default one for each sum.
    """
    gathers = habits.repeated_sums if repeated_gathers is None else repeated_gathers
    full = np.where(jobs.repeats_layers, 1.0, 0.0)
    counts: dict[Pass, tuple[Size, Size]] = {
        "forward": (PASS_SUMS, PASS_SUMS),
        "backward": (PASS_SUMS, PASS_SUMS + FURTHER_GATHERS),
        "repeated": (full * habits.repeated_sums, full * gathers),
    }
    return sums(jobs, habits, counts)


def end_exchanges(jobs: Jobs, habits: Habits, first: bool, last: bool) -> Exchanges:
    """Sums of a micro-batch outside of the layers, on a stage with the first or the last of them.

    The embedding's output is a sum, and so is the gradient of the output layer's input. The loss
    sums the greatest logit, then the exponentials and the target's logit, in float32.
    """
    made = sums(jobs, habits, {"forward": (first + last, first + 2 * last)})
    group, tokens = jobs.layout.axes.group("tp"), jobs.tokens
    loss = (Exchange("tensor", "all_reduce", group, n * tokens * 4) for n in (1, 2))
    return (*made, *(loss if last else ()))


def host_calls(jobs: Jobs, habits: Habits) -> Array:
    """Collectives of a layer's forward pass; none where one CUDA graph has the whole step."""
    each = np.where(splits_sequence(jobs, habits), 2.0, 1.0)
    by_host = (jobs.layout.tp > 1) & (jobs.options.graphs != STEP_GRAPHS)
    return np.where(by_host, PASS_SUMS * each, 0.0)


AXIS = Axis("tp", "tensor", layer_exchanges, REQUIREMENTS, host_calls)
