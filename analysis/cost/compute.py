"""Time of one transformer layer and of the output layer on one GPU, without communication.

Matrix products run at a share of the best rate that the machine was seen to reach, less what their
shape costs; everything else runs at the speed of memory; and the host must launch all kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.cost.constants import Constants, constant
from analysis.cost.jobs import Array, Jobs
from search_spaces import Cluster, Framework

GEMM_SHARE_OF_PEAK = 0.8  # where nobody measured: the median of the shipped clusters
COMPUTE_UNITS = 120  # likewise
TILE = 128
ALIGNMENT = 8  # elements: 16 bytes, what tensor cores load at once
UNALIGNED_HEADS = 10.0  # times slower: attention's products for head sizes that it does not divide


@dataclass(frozen=True)
class ComputeConstants(Constants):
    """What products, memory and launches really reach."""

    gemm_share: float = constant(0.9, 0.15, "of the best product's rate, in a training step")
    tail_waves: float = constant(0.6, 0.7, "waves of tiles lost at the end of each product")
    inner_size: float = constant(100, 0.7, "inner dimension at which half of the rate is reached")
    attention_share: float = constant(0.4, 0.5, "of the best product's rate, in flash attention")
    memory_share: float = constant(0.85, 0.3, "of the memory's rate, in elementwise kernels")
    score_bytes: float = constant(16, 0.5, "moved per attention score, without flash attention")
    launch_s: float = constant(1e-3, 0.7, "of the host, for one layer's forward kernels")


@dataclass(frozen=True)
class PassTimes:
    """Of one micro-batch on one GPU, in seconds, columns of shape (n,).

    Attributes:
        gemm: matrix products of a layer.
        attention: its attention core.
        elementwise: its norms, activations, residuals.
        launch: host time to launch it.
    """

    gemm: Array
    attention: Array
    elementwise: Array
    launch: Array

    @property
    def device(self) -> Array:
        return self.gemm + self.attention + self.elementwise


def smooth_max(a: Array, b: Array) -> Array:
    """A little more than the greater where both are near: neither hides the other fully."""
    power = 5.0
    most = np.maximum(a, b)
    safe = np.where(most > 0, most, 1.0)
    ratio = np.minimum(a, b) / safe
    return np.asarray(most * (1 + ratio**power) ** (1 / power))


class Compute:
    """Times of layers on a machine.

    Args:
        cluster: its peaks, memory rate and compute units.
        framework: flash attention or not.
        constants: what is reached of them.
    """

    def __init__(self, cluster: Cluster, framework: Framework, constants: ComputeConstants) -> None:
        self.framework, self.constants = framework, constants
        peak = cluster.peak_bf16_tflops or cluster.peak_fp32_tflops or 1.0
        best = cluster.gemm_bf16_tflops or GEMM_SHARE_OF_PEAK * peak
        self._rate = {2.0: best * 1e12 * constants.gemm_share}
        full = cluster.peak_fp32_tflops or peak / 2
        self._rate[4.0] = full * GEMM_SHARE_OF_PEAK * 1e12 * constants.gemm_share
        # Where nobody states it: the ratio of flops to bytes of GPUs of the last decade.
        gb_per_s = cluster.memory_gb_per_s or peak * 1e3 / 180
        self.memory_bytes_per_s = gb_per_s * 1e9 * constants.memory_share
        self._units = float(cluster.compute_units or COMPUTE_UNITS)

    def rate(self, jobs: Jobs) -> Array:
        """Flops per second of a large product."""
        return np.where(jobs.element_bytes > 2, self._rate[4.0], self._rate[2.0])

    def gemm_s(self, rows: Array, columns: Array, inner: Array, rate: Array) -> Array:
        """One product of (rows, inner) with (inner, columns).

        Tiles of 128 x 128 are dealt out to the compute units in waves (NVIDIA, Matrix
        Multiplication Background: tile and wave quantization); the last wave is not full. A short
        inner dimension does not fill the pipeline, an odd one not the tensor cores.
        """
        c = self.constants
        tiles = np.ceil(rows / TILE) * np.ceil(columns / TILE)
        waves = tiles / self._units
        flops = 2.0 * tiles * TILE * TILE * inner
        odd = (inner % ALIGNMENT != 0) | (columns % ALIGNMENT != 0)
        slower = (1 + c.tail_waves / waves) * (1 + c.inner_size / inner) * np.where(odd, 2.0, 1.0)
        return np.asarray(flops / rate * slower)

    def forward(self, jobs: Jobs) -> PassTimes:
        """One layer's forward pass."""
        rate, c = self.rate(jobs), self.constants
        tokens, h, tp = jobs.tokens, jobs.hidden_size, jobs.tp
        head, queries = jobs.head_dim, jobs.attention_size
        qkv = queries + 2 * jobs.kv_heads * head
        up = np.where(jobs.gated, 2.0, 1.0) * jobs.ffn_size
        gemm = (
            self.gemm_s(tokens, qkv / tp, h, rate)
            + self.gemm_s(tokens, h, queries / tp, rate)
            + self.gemm_s(tokens, up / tp, h, rate)
            + self.gemm_s(tokens, h, jobs.ffn_size / tp, rate)
        )
        split = np.where(jobs.sequence_parallel | self.framework.sequence_parallel, tp, 1.0)
        # Read and written: two norms, two residuals, the products' inputs and outputs.
        moved = jobs.element_bytes * tokens * (12 * h / split + (3 * qkv + 2 * up) / tp)
        return PassTimes(
            gemm=gemm,
            attention=self._attention(jobs, rate, head),
            elementwise=moved / self.memory_bytes_per_s,
            launch=c.launch_s + np.zeros(len(jobs)),
        )

    def _attention(self, jobs: Jobs, rate: Array, head: Array) -> Array:
        """Scores, softmax and values: 4 b s^2 h flops over the heads and tokens of this rank."""
        scores = jobs.tokens * jobs.attended * jobs.num_heads / jobs.tp
        c = self.constants
        if self.framework.flash_attention:
            # Causal: half of the blocks are skipped. Heads are padded to 64.
            padded = np.ceil(head / 64) * 64
            return np.asarray(2 * scores * padded / (rate * c.attention_share / c.gemm_share))
        products = 4 * scores * head / rate * (1 + c.inner_size / head)
        products = products * np.where(head % ALIGNMENT != 0, UNALIGNED_HEADS, 1.0)
        return np.asarray(products + scores * c.score_bytes / self.memory_bytes_per_s)

    def backward(self, jobs: Jobs, f: PassTimes) -> PassTimes:
        """One layer's backward pass without what it computes again, after its forward pass ``f``.

        Two products for each of the forward pass; flash attention's backward has five for two
        (Dao 2023). Launching takes half as long again: gradients, but no Python of the model.
        """
        core = 2.5 if self.framework.flash_attention else 2.0
        return PassTimes(2 * f.gemm, core * f.attention, 2 * f.elementwise, 1.5 * f.launch)

    def head(self, jobs: Jobs) -> tuple[Array, Array]:
        """Forward and backward pass of the output layer and the loss; seconds."""
        tokens, rate = jobs.tokens, self.rate(jobs)
        width = jobs.vocab_size / jobs.tp
        product = self.gemm_s(tokens, width, jobs.hidden_size, rate)
        # The logits in float32 are read and written a few times by softmax and loss.
        loss = tokens * width * 16 / self.memory_bytes_per_s
        return product + loss, 2 * product + loss
