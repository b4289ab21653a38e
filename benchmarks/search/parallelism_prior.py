"""Cost of a parallel job by formulas with a few constants: the prior mean of ``oppa``.

Time is the sum of computation, the pipeline's bubble and the messages of each kind of parallelism,
without overlap; memory is that of states and activations. Every constant is positive and has a
log-normal prior, whose median follows from the cluster's facts; trials fit it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from search_spaces import Cluster
from trainer.plan.flops import hardware_flops
from trainer.plan.jobs import FULL, Array, Jobs
from trainer.plan.sizes import model_weights, table_weights

TIME_SD = MEMORY_SD = 0.2  # of a trial's logarithm around the formulas
WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2, 2, 12  # of a parameter, mixed precision
LOGIT_BYTES = 6  # in 16 bits, and in 32 for the loss


@dataclass(frozen=True)
class Prior:
    """A formula, and the priors of its constants.

    Attributes:
        log: maps jobs and constants' logarithms, shape (k,), to the formula's logarithm, (n,).
        expected, sd: prior of the constants' logarithms; shape (k,).
        noise_sd: deviation of measured logarithms around the formula's.
    """

    log: Callable[[Jobs, Array], Array]
    expected: Array
    sd: Array
    noise_sd: float

    def fitted(self, jobs: Jobs, measured: Array, at_least: Array) -> Array:
        """The most probable constants' logarithms; shape (k,).

        Args:
            jobs: of the trials.
            measured: logarithms; shape (n,), nan without a measurement.
            at_least: lower bounds of these for trials without a measurement; shape (n,), nan
                without a bound.
        """
        if not len(jobs):
            return self.expected

        def misses(constants: Array) -> Array:
            off = measured - (found := self.log(jobs, constants))
            off = np.where(np.isnan(measured), np.maximum(at_least - found, 0.0), off)
            own = (constants - self.expected) / self.sd
            return np.concatenate([np.nan_to_num(off) / self.noise_sd, own])

        return np.asarray(least_squares(misses, self.expected).x)


def time_prior(cluster: Cluster) -> Prior:
    """Seconds per step, from a rate of computing, two bandwidths and a message's latency.

    Prior medians are half of the peak, the bandwidths that the facts state, and 10 microseconds a
    hop, each within a factor of about two.
    """
    inside = cluster.links[-1].gb_per_s if cluster.links else 10.0
    nic = cluster.nic
    between = nic.count * nic.gb_per_s / cluster.gpus_per_node if nic else inside
    rate = 0.5 * cluster.peak_bf16_tflops * 1e12
    expected = np.log([rate, inside * 1e9, between * 1e9, 1e-5])
    return Prior(
        lambda jobs, constants: np.log(_seconds(jobs, cluster.gpus_per_node, *np.exp(constants))),
        expected,
        np.full(4, 0.7),
        TIME_SD,
    )


def memory_prior() -> Prior:
    """Peak bytes, from a factor of states, one of activations, and a constant part.

    The factors are expected to be 1 within a fifth and a half, and the constant part 2 GiB within a
    factor of three.
    """
    return Prior(
        lambda jobs, constants: np.log(_bytes(jobs, *np.exp(constants))),
        np.log([1.0, 1.0, 2 * 2**30]),
        np.array([0.2, 0.5, 1.0]),
        MEMORY_SD,
    )


def _seconds(
    jobs: Jobs, gpus_per_node: int, rate: float, inside: float, between: float, latency_s: float
) -> Array:
    flops = hardware_flops(jobs.model, jobs.global_batch, jobs.recompute_words)
    compute = flops / jobs.layout.world_size / rate
    bubble = (jobs.layout.pp - 1) / (jobs.layout.gas * jobs.layout.vpp)
    # Ranks of one layer are adjacent, their replicas come next, and stages are farthest apart.
    layer_gpus = np.minimum(jobs.layout.layer_ranks, gpus_per_node)
    replicas = np.clip(gpus_per_node // jobs.layout.layer_ranks, 1, jobs.layout.replicas)

    def all_reduce(size: Array, ranks: Array, near: Array) -> Array:
        """First inside nodes, then each share between them."""
        far = ranks / near
        rings = (near - 1) / near / inside + (far - 1) / far / near / between
        return 2 * (size * rings + latency_s * np.log2(ranks))

    hidden = 2 * jobs.tokens * jobs.model.hidden_size  # bytes of a micro-batch between two layers
    layers = jobs.model.num_layers / jobs.layout.pp
    sums = 4 * layers * jobs.layout.gas * all_reduce(hidden, jobs.layout.layer_ranks, layer_gpus)
    gathers = np.where(
        jobs.placement.weight_shard > 1, 1.5 * jobs.layout.gas, 1.0
    )  # ZeRO-3: once more, each time
    reduction = gathers * all_reduce(WEIGHT_BYTES * _held(jobs), jobs.layout.replicas, replicas)
    beside = jobs.layout.layer_ranks * jobs.layout.replicas < gpus_per_node
    transfer = hidden / np.where(beside, inside, between) + latency_s
    sends = 2 * jobs.layout.gas * jobs.layout.vpp * transfer * (jobs.layout.pp > 1)
    return np.asarray((compute + sums + sends) * (1 + bubble) + reduction)


def _held(jobs: Jobs) -> Array:
    """Parameters of a rank of the first stage, without sharding over replicas."""
    own = model_weights(jobs.model) / jobs.layout.pp + table_weights(jobs.model)
    return np.asarray(own / jobs.layout.layer_ranks)


def _bytes(jobs: Jobs, states: float, activations: float, always: float) -> Array:
    each = (
        WEIGHT_BYTES / jobs.placement.weight_shard + GRADIENT_BYTES / jobs.placement.gradient_shard
    )
    each = each + OPTIMIZER_BYTES / jobs.placement.optimizer_shard
    # Korthikanti et al. 2022, without the attention matrix: 34 s b h, of which tp alone leaves 10.
    split = np.where(jobs.options.sequence_parallel, 34 / jobs.layout.tp, 10 + 24 / jobs.layout.tp)
    split = np.where(jobs.options.recompute == FULL, 2.0, split)
    in_flight = np.minimum(jobs.layout.pp, jobs.layout.gas) * jobs.model.num_layers / jobs.layout.pp
    kept = jobs.tokens * (jobs.model.hidden_size * split * in_flight)
    logits = LOGIT_BYTES * jobs.tokens * jobs.model.vocab_size / jobs.layout.tp
    return np.asarray(states * each * _held(jobs) + activations * (kept + logits) + always)
