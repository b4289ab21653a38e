"""Roofline of training steps (Williams et al. 2009), as Dash et al. 2023, section V-B, draw it.

Arithmetic intensity is the operations of a step on one GPU over the bytes that its memory moves.
Both come from the plan, with each operand moved once; caches too small for that move more. The rate
that a step attained is its operations over its measured time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.cost import state_memory
from analysis.cost.activations import repeated_work, repeats_attention
from analysis.cost.compute import Compute, is_flash
from analysis.cost.groups import MissingFactError
from analysis.cost.layer import ELEMENTWISE_AGAIN
from analysis.cost.model import CostModel
from analysis.cost.state_exchanges import held_parameters, update_bytes
from analysis.cost.state_memory import as_run
from trainer.plan.flops import hardware_flops
from trainer.plan.jobs import FULL, SELECTIVE, Array, Jobs

WEIGHT_READS = 2.0  # per micro-batch: by the forward products, and by inputs' gradients
GRADIENT_BYTES = 8.0  # per weight and micro-batch: its gradient in float32, read and written


@dataclass(frozen=True)
class Roofline:
    """Work of a step on one GPU, columns of shape (n,), and the GPU's limits."""

    flops: Array  # operations, repeated ones included
    moved_bytes: Array  # between the GPU and its memory
    peak_tflops: float  # of its matrix products
    gb_per_s: float  # of its memory

    @property
    def intensity(self) -> Array:
        """Operations per byte."""
        return np.asarray(self.flops / self.moved_bytes)

    def attained_tflops(self, step_s: Array) -> Array:
        """TFLOP/s of steps that took ``step_s``."""
        return np.asarray(self.flops / step_s / 1e12)


def roofline(model: CostModel, jobs: Jobs) -> Roofline:
    """The roofline of jobs; raises MissingFactError without the cluster's memory bandwidth."""
    cluster = model.cluster
    if cluster.memory_gb_per_s is None:
        raise MissingFactError("the cluster's `memory_gb_per_s` is not known")
    peak_tflops = cluster.peak_bf16_tflops or cluster.peak_fp32_tflops
    assert peak_tflops is not None  # a cluster has one of them
    work = model.each(
        jobs, lambda m, j: {"flops": _executed(m, j), "moved_bytes": _moved_bytes(m, j)}
    )
    return Roofline(**work, peak_tflops=peak_tflops, gb_per_s=cluster.memory_gb_per_s)


def _executed(model: CostModel, jobs: Jobs) -> Array:
    """Operations of a step on one GPU, with those that the framework repeats."""
    words, framework = jobs.recompute_words, model.framework
    kept = (words == "selective") & ~repeats_attention(jobs, framework)
    own, full, some = (
        hardware_flops(jobs.model, jobs.global_batch, np.asarray(repeated))
        for repeated in (np.where(kept, "none", words), "full", "selective")
    )
    products = repeated_work(jobs, framework)[0] * (full - some)
    return np.asarray((own + products) / jobs.layout.world_size, dtype=float)


def _moved_bytes(model: CostModel, jobs: Jobs) -> Array:
    """Bytes that one GPU's memory moves in a step; mean over the pipeline's stages."""
    jobs = as_run(jobs, model.framework)
    compute = Compute(model.cluster, model.framework, model.constants)
    layers, micro_batches = jobs.model.num_layers / jobs.layout.pp, jobs.layout.gas
    # A forward pass, twice as much backwards, and once more where it is repeated.
    full = jobs.options.recompute == FULL
    attends = repeats_attention(jobs, model.framework)
    selective = jobs.options.recompute == SELECTIVE
    again = selective & ~attends & bool(model.framework.keeps_products)
    passes = 3.0 + full + ELEMENTWISE_AGAIN * again
    activations = compute.forward(jobs).elementwise * compute.memory_bytes_per_s * passes
    activations = activations + repeated_work(jobs, model.framework)[1]
    scores = jobs.tokens * jobs.model.attended * jobs.model.num_heads / jobs.layout.tp
    unfused = np.where(is_flash(jobs, model.framework), 0.0, scores * model.constants.score_bytes)
    core = 3.0 + (full | (selective & attends))
    weights = sum(held for held, _ in held_parameters(jobs, model.framework))
    of_weights = weights * (WEIGHT_READS * jobs.options.element_bytes + GRADIENT_BYTES)
    logits = 32 * jobs.tokens * jobs.model.vocab_size / jobs.layout.tp / jobs.layout.pp
    of_micro_batch = layers * (activations + core * unfused) + of_weights + logits
    on_host = state_memory.updates_on_host(jobs, model.framework)
    once = np.where(on_host, 0.0, sum(update_bytes(jobs, model.framework)))
    return np.asarray(micro_batches * of_micro_batch + once)
