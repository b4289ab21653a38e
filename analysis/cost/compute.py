"""Time of one transformer layer and of the output layer on one GPU, without communication.

Matrix products run at a share of the best measured rate, less what their shape costs; everything
else runs at the speed of memory; and the host must launch all kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.cost import tuning
from analysis.cost.constants import Constants, constant
from search_spaces import Cluster, Framework
from trainer.plan.axes.ep import assigned_tokens, local_experts, mixed_share
from trainer.plan.axes.tp import splits_sequence
from trainer.plan.jobs import BY_HABIT, NO_GRAPHS, STEP_GRAPHS, Array, Jobs, Mask
from trainer.plan.sizes import Latent, Mixture, latent_matrices

GEMM_SHARE_OF_PEAK = 0.8  # if it was not measured: the median of the shipped clusters
COMPUTE_UNITS = 120  # likewise
TILE = 128
ALIGNMENT = 8  # elements: 16 bytes, what tensor cores load at once
BACKWARD_LAUNCHES = 1.5  # of the forward pass: gradients, but no Python of the model
# Bytes per element that unfused kernels move beyond fused ones, a third of both passes: hidden size
# in both norms, queries and keys, gate. Transformers' Llama moves (84, 20, 10) forward and (218,
# 26, 18) backward, fused kernels would move (20, 4, 6) and (24, 4, 10); a test counts them.
ALONE = 86.0, 12.7, 4.0
UNALIGNED_HEADS = 10.0  # slow-down of attention's products if ALIGNMENT does not divide a head


def is_flash(jobs: Jobs, framework: Framework) -> Mask:
    """Whether attention's scores never reach memory."""
    said = jobs.options.flash_attention
    return np.where(said == BY_HABIT, framework.flash_attention, said == 1)


@dataclass(frozen=True)
class ComputeConstants(Constants):
    """Rates that products, memory and launches really reach."""

    gemm_share: float = constant(0.89, 0.15)  # of the best product's rate, in a training step
    tail_waves: float = constant(0.1, 0.7)  # waves of tiles lost at the end of each product
    inner_size: float = constant(60, 0.7)  # inner dimension at which half of the rate is reached
    product_s: float = constant(3e-6, 0.5)  # of the device, to begin and end a product
    attention_share: float = constant(0.4, 0.5)  # of the best product's rate, in flash attention
    ring_share: float = constant(0.7, 0.4)  # of that rate, where a ring cuts attention into blocks
    memory_share: float = constant(0.85, 0.3)  # of the memory's rate, in elementwise kernels
    score_bytes: float = constant(11, 0.5)  # moved per attention score, without flash attention
    launch_s: float = constant(1e-3, 0.7)  # of the host, for one layer's forward kernels
    # of the rate that gemm_share gives, in 8-bit products, whose inputs must be cast
    fp8_share: float = constant(0.75, 0.3)
    expert_share: float = constant(0.8, 0.3)  # of a product's rate, in grouped products of experts
    # copies of the experts' inputs that memory moves to sort tokens by expert and back
    permuted_copies: float = constant(6.0, 0.5)
    # of the host, for one expert's forward kernels: casts, products, padding
    expert_launch_s: float = constant(1.5e-4, 0.7)


@dataclass(frozen=True)
class PassTimes:
    """Seconds of one pass of one micro-batch on one GPU, columns of shape (n,)."""

    gemm: Array  # matrix products of a layer
    attention: Array  # its attention core
    elementwise: Array  # its norms, activations, residuals
    launch: Array  # host time to launch it

    @property
    def device(self) -> Array:
        return self.gemm + self.attention + self.elementwise


def smooth_max(a: Array, b: Array) -> Array:
    """The maximum, a little more where both are near: neither hides the other fully."""
    power = 5.0
    most = np.maximum(a, b)
    safe = np.where(most > 0, most, 1.0)
    ratio = np.minimum(a, b) / safe
    return np.asarray(most * (1 + ratio**power) ** (1 / power))


class Compute:
    """Times of layers on a machine."""

    def __init__(self, cluster: Cluster, framework: Framework, constants: ComputeConstants) -> None:
        self.framework, self.constants = framework, constants
        peak = cluster.peak_bf16_tflops or cluster.peak_fp32_tflops or 1.0
        best = cluster.gemm_bf16_tflops or GEMM_SHARE_OF_PEAK * peak
        self._rate = {2.0: best * 1e12 * constants.gemm_share}
        # If not stated, twice as fast as in 16 bits.
        in_8_bits = GEMM_SHARE_OF_PEAK * (cluster.peak_fp8_tflops or 2 * peak)
        self._fp8 = cluster.gemm_fp8_tflops or in_8_bits
        full = cluster.peak_fp32_tflops or peak / 2
        self._rate[4.0] = full * GEMM_SHARE_OF_PEAK * 1e12 * constants.gemm_share
        # If not stated: by the ratio of flops to bytes of GPUs of the last decade.
        gb_per_s = cluster.memory_gb_per_s or peak * 1e3 / 180
        self.memory_bytes_per_s = gb_per_s * 1e9 * constants.memory_share
        self._units = float(cluster.compute_units or COMPUTE_UNITS)

    def rate(self, jobs: Jobs) -> Array:
        """Flops per second of a large product."""
        return np.where(jobs.options.element_bytes > 2, self._rate[4.0], self._rate[2.0])

    def layer_rate(self, jobs: Jobs) -> Array:
        """The same of a layer's own matrices, which FP8 computes in 8 bits."""
        narrow = self._fp8 * 1e12 * self.constants.gemm_share * self.constants.fp8_share
        return np.where(jobs.options.fp8, narrow, self.rate(jobs))

    def gemm_s(
        self, rows: Array, columns: Array, inner: Array, rate: Array, groups: Array | float = 1.0
    ) -> Array:
        """Seconds of a product of (rows, inner) with (inner, columns), or of ``groups`` at once.

        Tiles of 128 x 128 are dealt out to the compute units in waves (NVIDIA, Matrix
        Multiplication Background: tile and wave quantization); the last wave is not full. A short
        inner dimension does not fill the pipeline, an unaligned one not the tensor cores.
        """
        c = self.constants
        tiles = groups * np.ceil(rows / TILE) * np.ceil(columns / TILE)
        waves = tiles / self._units
        flops = 2.0 * tiles * TILE * TILE * inner
        odd = (inner % ALIGNMENT != 0) | (columns % ALIGNMENT != 0)
        slower = (1 + c.tail_waves / waves) * (1 + c.inner_size / inner) * np.where(odd, 2.0, 1.0)
        return np.asarray(flops / rate * slower + c.product_s)

    def forward(self, jobs: Jobs) -> PassTimes:
        rate = self.layer_rate(jobs)
        # On a grid the hidden size is split as well.
        tokens, h, tp = jobs.tokens, jobs.model.hidden_size / jobs.layout.gy, jobs.layout.tp
        head, queries = jobs.model.head_dim, jobs.model.attention_size
        qkv = queries + 2 * jobs.model.kv_heads * head
        up = np.where(jobs.model.gated, 2.0, 1.0) * jobs.model.ffn_size
        attention = self.gemm_s(tokens, qkv / tp, h, rate)
        attention = attention + self.gemm_s(tokens, h, queries / tp, rate)
        if jobs.model.latent is not None:
            attention = self._latent(jobs, jobs.model.latent, rate, attention)
        ffn = self.gemm_s(tokens, up / tp, h, rate)
        ffn = ffn + self.gemm_s(tokens, h, jobs.model.ffn_size / tp, rate)
        split = np.where(splits_sequence(jobs, self.framework), tp, 1.0)
        # Read and written: two norms, two residuals, the products' inputs and outputs.
        moved = jobs.options.element_bytes * tokens * (12 * h / split + (3 * qkv + 2 * up) / tp)
        moved = moved + tuning.moved_bytes(jobs, self.framework)
        if self.framework.autocast_layers:
            norms, rotation, gate = ALONE
            rotated = (queries + jobs.model.kv_heads * head) * rotation
            alone = norms * h / split + (rotated + gate * jobs.model.ffn_size) / tp
            # Kernels that never hold the logits are Liger's, which fuse layers as well.
            some = jobs.model.gated & ~jobs.options.chunked_loss
            moved = moved + np.where(some, jobs.tokens * alone, 0.0)
        if jobs.model.mixture is not None:
            ffn, more = self._experts(jobs, jobs.model.mixture, rate, ffn, 2 * up / tp)
            moved = moved + more
        return PassTimes(
            gemm=attention + ffn,
            attention=self._attention(jobs, self.rate(jobs), head),
            elementwise=moved / self.memory_bytes_per_s,
            launch=self._launch(jobs),
        )

    def _launch(self, jobs: Jobs) -> Array:
        """Host seconds to launch a layer's forward kernels outside CUDA graphs.

        Layers with experts launch as much again for the router, dispatch and combine, and a few
        kernels for each of a rank's experts, whose numbers of rows are not known ahead.
        """
        c = self.constants
        left = np.where(jobs.options.graphs == NO_GRAPHS, c.launch_s * tuning.launched(jobs), 0.0)
        if jobs.model.mixture is not None:
            experts = local_experts(jobs, jobs.model.mixture)
            more = mixed_share(jobs, jobs.model.mixture) * (
                c.launch_s + c.expert_launch_s * experts
            )
            left = left + np.where(jobs.options.graphs == STEP_GRAPHS, 0.0, more)
        return left

    def _latent(self, jobs: Jobs, latent: Latent, rate: Array, plain: Array) -> Array:
        """Seconds of latent attention's products; ``plain`` where a job has none.

        Every tensor-parallel rank computes the down projections whole.
        """
        down_q, up_q, down_kv, up_kv, out = latent_matrices(jobs.model, latent)
        tokens, tp = jobs.tokens, jobs.layout.tp
        whole = self.gemm_s(tokens, np.maximum(down_kv.outputs, 1), down_kv.inputs, rate)
        # Jobs without latent attention, or without a latent of the queries, have empty matrices.
        queries = self.gemm_s(tokens, np.maximum(down_q.outputs, 1), down_q.inputs, rate)
        whole = whole + np.where(down_q.outputs > 0, queries, 0.0)
        split = sum(
            self.gemm_s(tokens, np.maximum(m.outputs / tp, 1), np.maximum(m.inputs, 1), rate)
            for m in (up_q, up_kv)
        )
        split = split + self.gemm_s(tokens, out.outputs, np.maximum(out.inputs / tp, 1), rate)
        return np.where(latent.key_value_rank > 0, whole + split, plain)

    def _experts(
        self, jobs: Jobs, mixture: Mixture, rate: Array, dense: Array, dense_moved: Array
    ) -> tuple[Array, Array]:
        """Seconds of a mixture's feed-forward products, and extra bytes moved; mean over layers.

        The bytes are beyond those of a dense part, whose products take ``dense`` seconds and move
        ``dense_moved`` elements for each token.
        """
        c, h, e = self.constants, jobs.model.hidden_size, jobs.options.element_bytes
        share = mixed_share(jobs, mixture)
        wide = np.where(jobs.model.gated, 2.0, 1.0)
        rows = assigned_tokens(jobs, mixture)
        local = local_experts(jobs, mixture)
        inner = np.maximum(mixture.expert_ffn_size / jobs.layout.etp, 1)
        each = np.maximum(rows / local, 1)
        grouped = self.gemm_s(each, wide * inner, h, rate, local)
        grouped = grouped + self.gemm_s(each, h, inner, rate, local)
        shared_size = np.maximum(mixture.shared_ffn_size / jobs.layout.tp, 1)
        shared = self.gemm_s(jobs.tokens, wide * shared_size, h, rate)
        shared = shared + self.gemm_s(jobs.tokens, h, shared_size, rate)
        # Routers compute in 16 bits or more whatever the layers do.
        outputs = np.maximum(mixture.num_experts, 1)
        router = self.gemm_s(jobs.tokens / jobs.layout.tp, outputs, h, self.rate(jobs))
        mixed = grouped / c.expert_share + router
        mixed = mixed + np.where(mixture.shared_ffn_size > 0, shared, 0.0)
        moved = rows * (c.permuted_copies * h + 2 * wide * inner)
        moved = moved + jobs.tokens * 2 * wide * mixture.shared_ffn_size / jobs.layout.tp
        moved = moved - jobs.tokens * dense_moved
        return dense + share * (mixed - dense), e * share * moved

    def _attention(self, jobs: Jobs, rate: Array, head: Array) -> Array:
        """Scores, softmax and values: 4 b s^2 h flops over the heads and tokens of this rank."""
        scores = jobs.tokens * jobs.model.attended * jobs.model.num_heads / jobs.layout.tp
        c = self.constants
        # Causal: half of the blocks are skipped. Heads are padded to 64.
        padded = np.ceil(head / 64) * 64
        reached = c.attention_share * np.where(jobs.layout.cp > 1, c.ring_share, 1.0)
        causal_s = 2 * scores * padded / (rate * reached / c.gemm_share)
        # With a mask no block is skipped, and each head reads it.
        masked_s = 2 * causal_s + scores * jobs.options.element_bytes / self.memory_bytes_per_s
        fused_s = np.where(jobs.masks_scores, masked_s, causal_s)
        products = 4 * scores * head / rate * (1 + c.inner_size / head)
        products = products * np.where(head % ALIGNMENT != 0, UNALIGNED_HEADS, 1.0)
        written_s = products + scores * c.score_bytes / self.memory_bytes_per_s
        flash = is_flash(jobs, self.framework)
        return np.asarray(np.where(flash, fused_s, written_s))

    def backward(self, jobs: Jobs, f: PassTimes) -> PassTimes:
        """One layer's backward pass without recomputation, given its forward pass ``f``.

        Two products for each of the forward pass, one for frozen weights; five for two in flash
        attention (Dao 2023).
        """
        core = np.where(is_flash(jobs, self.framework), 2.5, 2.0)
        launch = BACKWARD_LAUNCHES * f.launch
        products = tuning.weight_passes(jobs) * f.gemm
        return PassTimes(products, core * f.attention, 2 * f.elementwise, launch)

    def head(self, jobs: Jobs) -> tuple[Array, Array]:
        """Forward and backward pass of the output layer and the loss; seconds."""
        tokens, rate = jobs.tokens, self.rate(jobs)
        width = jobs.model.vocab_size / jobs.layout.tp
        product = self.gemm_s(tokens, width, jobs.model.hidden_size / jobs.layout.gy, rate)
        # The logits in float32 are read and written a few times by softmax and loss.
        loss = tokens * width * 16 / self.memory_bytes_per_s
        # The built-in trainer recomputes chunks of logits.
        again = jobs.options.chunked_loss if self.framework.flat_buckets else 0.0
        backward = (np.where(tuning.freezes(jobs), 1.0, 2.0) + again) * product
        return product + loss, backward + loss
