"""Tensor parallelism: each layer's matrices split over ranks (Shoeybi et al. 2019, section 3).

QKV and the first feed-forward product are column-parallel, the products after them row-parallel, so
a layer has two all-reduces per pass. Sequence parallelism (Korthikanti et al. 2022) splits the
activations in between by sequence and turns each into a reduce-scatter and an all-gather.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trainer.plan.axes.axis import Axis, Exchanges
from trainer.plan.axes.mesh import Size
from trainer.plan.exchange import Exchange, Habits, Operation, Pass, Work
from trainer.plan.jobs import MODULES, STEP_GRAPHS, Array, Jobs, Mask
from trainer.plan.rules.requirement import STATED
from trainer.plan.sizes import mixed_layers

PASS_SUMS = 2
"""All-reduces per layer and pass: of row-parallel outputs, of column-parallel input gradients."""


def splits_sequence(jobs: Jobs, habits: Habits) -> Mask:
    """Whether sequence parallelism is on."""
    return np.asarray(jobs.options.sequence_parallel | habits.sequence_parallel)


def sums(
    jobs: Jobs, habits: Habits, counts: Mapping[Pass, tuple[Size, Size]], width: Size | None = None
) -> Exchanges:
    """Sums of activations over tp.

    Args:
        counts: per pass, sums, and all-gathers under sequence parallelism, where a sum is a
            reduce-scatter.
        width: of the activations, over the hidden states'; default theirs.
    """
    group, split = jobs.layout.axes.group("tp"), splits_sequence(jobs, habits)
    sent = jobs.activation_bytes if width is None else jobs.activation_bytes * width
    behind: Work = "products" if habits.overlaps_tensor else ""
    fuses = np.where(split & jobs.options.async_tp, 1.0, 0.0)
    made: list[Exchange] = []
    for within, (count, gathers) in counts.items():
        # Backward, only gathers of output gradients are fused: products hide the other exchanges.
        fused = (PASS_SUMS, 0) if within == "backward" else (gathers, count)
        each: tuple[tuple[Operation, Size, Size], ...] = (
            ("all_gather", np.where(split, gathers, 0.0), fused[0] * fuses),
            ("reduce_scatter", np.where(split, count, 0.0), fused[1] * fuses),
            ("all_reduce", np.where(split, 0.0, count), 0.0),
        )
        made += [Exchange("tensor", how, group, sent, n, within, behind, f) for how, n, f in each]
    return tuple(made)


def layer_exchanges(jobs: Jobs, habits: Habits) -> Exchanges:
    """Sums of activations in both passes of a layer, and those that full recomputation repeats, or
    that of a feed-forward part or of shared experts among ``recompute_modules``.

    With sequence parallelism the backward pass gathers both column-parallel inputs again, for the
    weight gradients, and both inputs of a repeated pass are gathered, even if its last sum is left
    out. Latent attention's inputs are its latents, which each rank makes by itself, and the rotary
    channels of its keys, which meet no weight.
    """
    full = np.where(jobs.repeats_layers, 1.0, 0.0)
    module = dict(zip(MODULES, jobs.modules, strict=True))
    again = module["mlp"]
    if (mixture := jobs.model.mixture) is not None:
        mixed = mixed_layers(jobs.model, mixture) / jobs.model.num_layers
        shared = np.maximum(module["shared_experts"], module["moe"])
        again = again * (1.0 - mixed) + shared * (mixture.shared_ffn_size > 0) * mixed
    latent, inputs = jobs.model.latent, np.full(len(jobs), float(PASS_SUMS))
    if latent is not None:
        inputs = inputs - ((latent.key_value_rank > 0) & (latent.query_rank > 0))
    counts: dict[Pass, tuple[Size, Size]] = {
        "forward": (PASS_SUMS, inputs),
        "backward": (inputs, PASS_SUMS + inputs),
        "repeated": (full * habits.repeated_sums + again, full * inputs + again),
    }
    found = sums(jobs, habits, counts)
    if jobs.options.partition_activations.any():
        apart = full * jobs.options.partition_activations * ~splits_sequence(jobs, habits)
        group, sent = jobs.layout.axes.group("tp"), jobs.activation_bytes
        found += (Exchange("tensor", "all_gather", group, sent, apart, "repeated"),)
    if latent is None:
        return found
    for width, weighed in (
        (latent.query_rank, 1.0),
        (latent.key_value_rank, 1.0),
        (latent.rotary_size, 0.0),
    ):
        some = np.where((latent.key_value_rank > 0) & (width > 0), 1.0, 0.0)
        own: dict[Pass, tuple[Size, Size]] = {
            "forward": (0.0, some),
            "backward": (some, weighed * some),
            "repeated": (0.0, full * some),
        }
        found += sums(jobs, habits, own, width / jobs.model.hidden_size)
    return found


def host_calls(jobs: Jobs, habits: Habits) -> Array:
    """Collectives of a layer's forward pass, in parts if fused with products; none if one CUDA
    graph holds the whole step."""
    each = np.where(splits_sequence(jobs, habits), 2.0, 1.0)
    each = each * np.where(jobs.options.async_tp, jobs.layout.tp, 1.0)
    by_host = (jobs.layout.tp > 1) & (jobs.options.graphs != STEP_GRAPHS)
    return np.where(by_host, PASS_SUMS * each, 0.0)


AXIS = Axis("tp", "tensor", layer_exchanges, STATED["tp"], host_calls)
