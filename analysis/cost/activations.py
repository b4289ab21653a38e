"""Bytes that a micro-batch keeps in memory until its backward pass."""

from __future__ import annotations

import numpy as np

from analysis.cost import tuning
from analysis.cost.compute import is_flash
from analysis.cost.stages import StageLoad
from search_spaces import Framework
from trainer.plan.axes import ep, pp
from trainer.plan.axes.tp import splits_sequence
from trainer.plan.jobs import FULL, NO_MODULES, NONE, ONE_F_ONE_B, SELECTIVE, Array, Jobs, Mask
from trainer.plan.sizes import Mixture, Size, ffn_weights, latent_matrices, model_weights


def sequence_split(jobs: Jobs, framework: Framework) -> Array:
    """Ranks that split tensors whole under tensor parallelism: by sequence, or a grid by width."""
    return np.where(splits_sequence(jobs, framework), jobs.layout.tp, jobs.layout.gy)


def _input_split(jobs: Jobs, framework: Framework) -> Array:
    """Ranks over which the input of a recomputed layer is split."""
    apart = jobs.options.partition_activations != 0
    return np.where(apart, jobs.layout.tp, sequence_split(jobs, framework))


def layer_bytes(jobs: Jobs, framework: Framework, recompute: Array) -> Array:
    """Activations that one layer keeps of one micro-batch.

    Korthikanti et al. 2022, Table 2, written for any feed-forward size, gated units and grouped
    queries. Dropout masks count only if the framework keeps them and units are not gated: gated
    models are trained without dropout. Inputs of two norms and of two matrix products, of
    ``hidden_size`` elements a token, stay whole without sequence parallelism; queries, keys, values
    and attention's output are split by ``tp``. Gated models rotate queries and keys and keep both
    forms, unless layers are fused or compiled. In FP8, fused layers keep inputs of products in 8
    bits, and attention's output in both forms (Transformer Engine's Linear and LayerNormLinear).
    """
    h, e, f = jobs.model.hidden_size, jobs.options.element_bytes, jobs.model.ffn_size
    queries = jobs.model.attention_size
    keys = queries * jobs.model.kv_heads / jobs.model.num_heads
    dropout = framework.masked_dropout & ~jobs.model.gated
    masks = np.where(dropout, 2.0 * h, 0.0)
    ends = 4 * e * h
    if framework.autocast_layers:
        # Inputs of norms, numbers that RMS norms scale, and inputs of products.
        gated = jobs.model.gated
        ends = np.where(gated, 16 * h, 8 * h) + np.where(gated & (e < 4), 5, 2) * e * h
    fused = framework.fused_layers
    halved = np.where(jobs.options.fp8 & np.asarray(fused), 1.0, 0.0)  # bytes saved by 8 bits
    whole = (ends - halved * 2 * h + masks) / sequence_split(jobs, framework)
    if (latent := jobs.model.latent) is not None:  # inputs of its norms and its up projections
        ranks = latent.query_rank + latent.key_value_rank
        whole = whole + (2 * e - halved) * ranks / sequence_split(jobs, framework)
    experts: Array | float = 0.0
    routes: Array | float = 0.0
    if jobs.model.mixture is not None:
        share = ep.mixed_share(jobs, jobs.model.mixture)
        f = f + share * (jobs.model.mixture.shared_ffn_size - f)
        routes, experts = _experts(jobs, jobs.model.mixture, framework, share)
    lean = fused | _compiled(jobs, framework)
    rotated = np.where(jobs.model.gated & ~lean, queries + keys, 0.0)
    inner = np.where(jobs.model.gated, np.where(lean, 3, 4), 2) * f
    split = e * (2 * queries + _shared(jobs, framework, recompute, keys) + rotated + inner)
    split = split + halved * (queries - f)
    sums = 4 * jobs.model.num_heads  # logarithm of the softmax's denominator, float32
    scores = jobs.model.num_heads * jobs.model.attended * (e + np.where(dropout, 1 + e, 0.0))
    kept_scores = (recompute == NONE) | (recompute == SELECTIVE) & ~jobs.repeats("core_attn", True)
    written = np.where(kept_scores, scores, 0.0)
    split = split + np.where(is_flash(jobs, framework), sums, written)
    kept = whole + split / jobs.layout.tp
    only_input = e * h / _input_split(jobs, framework)
    some = np.where(recompute == SELECTIVE, _selective(jobs, framework, kept, f), kept)
    frozen = tuning.freezes(jobs)
    if frozen.any():
        whole, split = tuning.kept_bytes(jobs, framework)
        split = split + np.where(is_flash(jobs, framework), 0.0, written)
        kept = whole / sequence_split(jobs, framework) + split / jobs.layout.tp
        some = np.where(frozen, kept, some)
    if jobs.model.mixture is not None:
        some = some + experts / jobs.tokens
    again = (recompute == SELECTIVE) & ~frozen  # frozen layers keep too little to save as much
    some = some - np.where(again, _modules(jobs, framework)[0] / jobs.tokens, 0.0)
    return np.where(recompute == FULL, jobs.tokens * only_input + routes, jobs.tokens * some)


def _modules(jobs: Jobs, framework: Framework) -> tuple[Array, Array]:
    """Bytes of a micro-batch that a layer recomputes with its ``recompute_modules`` instead of
    keeping them, and the share of its products for that; mean over all layers.

    Megatron Core does not keep outputs of norms that are separate from products (before latent
    attention and experts), keeps latents in place of queries, keys, values and normed latents, and
    of feed-forward parts the input only.
    """
    left_out, products = np.zeros((2, len(jobs)))
    if framework.keeps_products or (jobs.options.recompute_modules == NO_MODULES).all():
        return left_out, products  # which keep less than the modules do

    def add(again: Mask, share: Array, num_bytes: Array, weights: Size = 0.0) -> None:
        left_out[:] += np.where(again, share * num_bytes, 0.0)
        products[:] += np.where(again, share * weights, 0.0)

    model, tokens, tp, moe = jobs.model, jobs.tokens, jobs.layout.tp, jobs.repeats("moe")
    e, fused, norms = jobs.options.element_bytes, framework.fused_layers, jobs.repeats("layernorm")
    halved = np.where(jobs.options.fp8 & np.asarray(fused), 1.0, 0.0)
    inner = e * np.where(model.gated, 3 if fused else 4, 2) - halved
    norm = tokens * (e - halved) * model.hidden_size / sequence_split(jobs, framework)
    mixed: Array = np.zeros(len(jobs))
    if (mixture := model.mixture) is not None:
        mixed, each, h = ep.mixed_share(jobs, mixture), mixture.expert_ffn_size, model.hidden_size
        gate = (inner - e * np.where(model.gated, 2, 1)) * each / jobs.layout.etp
        routed = mixture.experts_per_token * ffn_weights(model, each) + mixture.num_experts * h
        add(moe, mixed, ep.activation_bytes(jobs, mixture, fused), routed)
        add(jobs.repeats("moe_act") & ~moe, mixed, ep.assigned_tokens(jobs, mixture) * gate)
        shared, own = mixture.shared_ffn_size, jobs.repeats("shared_experts")
        add(own | moe, mixed, tokens * inner * shared / tp, ffn_weights(model, shared))
    if (latent := model.latent) is not None:
        some = np.where(latent.key_value_rank > 0, 1.0, 0.0)
        made = model.num_heads * (2 * (latent.key_size + latent.rotary_size) + latent.value_size)
        normed = (e - halved) * (latent.query_rank + latent.key_value_rank) - e * latent.rotary_size
        up = tokens * (e * made / tp + normed / sequence_split(jobs, framework))
        weights = sum(m.inputs * m.outputs for m in latent_matrices(model, latent)[1:4:2])
        add(jobs.repeats("mla_up_proj"), some, up, weights)
        add(norms, some, norm)
    dense = norm + tokens * inner * model.ffn_size / tp
    add(jobs.repeats("mlp"), 1 - mixed, dense, ffn_weights(model, model.ffn_size))
    add(norms, mixed, norm)
    return left_out, products * model.num_layers / model_weights(model, active=True)


def _compiled(jobs: Jobs, framework: Framework) -> Mask:
    """Whether the built-in trainer compiles whole layers. They keep both inputs of a gated unit
    and their product, and one form of rotated queries and keys.
    """
    whole = framework.keeps_products == "all" and jobs.model.mixture is None
    return np.asarray(jobs.options.compiled & whole)


def _shared(jobs: Jobs, framework: Framework, recompute: Array, keys: Array) -> Array:
    """Elements of a token's keys and values that attention keeps.

    Kernels with masks have no grouped queries: the built-in trainer repeats keys and values for
    each query, in place of the output of the product.
    """
    queries = jobs.model.attention_size
    if framework.keeps_products != "all":
        return 2 * keys
    grouped = jobs.masks_scores & (keys < queries) & (recompute == NONE)
    return np.where(grouped, queries, 2 * keys)


def _experts(
    jobs: Jobs, mixture: Mixture, framework: Framework, share: Array
) -> tuple[Array | float, Array]:
    """Bytes that experts keep of a micro-batch, in a ``share`` of the layers: routes, and in all.

    The built-in trainer's routes are a token's experts, their order and its inverse in int64; full
    recomputation keeps them too. Its router keeps its input and two forms of its scores in float32.
    """
    kept = share * ep.activation_bytes(jobs, mixture, framework.fused_layers)
    if framework.keeps_products != "all":
        return 0.0, kept
    tokens = share * jobs.tokens / jobs.layout.tp
    routes = tokens * 24 * mixture.experts_per_token
    router = tokens * (4 * jobs.model.hidden_size + 8 * mixture.num_experts)
    return routes, kept + routes + router


def _selective(jobs: Jobs, framework: Framework, everything: Array, f: Array) -> Array:
    """Bytes per token that a layer keeps with selective recomputation; ``everything``: without it.

    ``f`` is the mean inner size of the feed-forward part over all layers.
    """
    h, e, tp = jobs.model.hidden_size, jobs.options.element_bytes, jobs.layout.tp
    queries = jobs.model.attention_size
    keys = queries * jobs.model.kv_heads / jobs.model.num_heads
    only_input = e * h / sequence_split(jobs, framework)
    if framework.keeps_products == "second":
        # Outputs of the products for queries, values and gate, of attention, and of the last
        # product: with tp its partial result and both reduced ones.
        products = 4 * jobs.model.num_heads + e * (2 * queries + keys + f)
        return only_input + products / tp + e * h + np.where(tp > 1, 2 * e * h / tp, 0.0)
    if framework.keeps_products == "all":
        # Outputs of both products split by columns, of attention, and of its projection.
        up = np.where(jobs.model.gated, 2, 1) * f
        products = 4 * jobs.model.num_heads + e * (2 * queries + 2 * keys + up)
        kept = 2 * only_input + products / tp
        return np.where(repeats_attention(jobs, framework), everything, kept)
    return everything


def repeats_attention(jobs: Jobs, framework: Framework) -> Mask:
    """Whether selective recomputation repeats attention.

    torchtitan's keeps attention; the built-in trainer's too, except with context parallelism, on a
    grid or with experts.
    """
    if framework.keeps_products != "all":
        return jobs.repeats("core_attn", True) & (framework.keeps_products == "")
    grid = jobs.layout.on_grid | (jobs.layout.gy * jobs.layout.gz > 1)
    if jobs.model.mixture is not None:
        grid = grid | (jobs.model.mixture.num_experts > 0)
    return np.asarray(grid | (jobs.layout.cp > 1))


def repeated_work(jobs: Jobs, framework: Framework) -> Array:
    """Share of a layer's products that selective recomputation repeats, and bytes that memory moves
    for modules, whose outputs are written and read again; shape (2, n).

    torchtitan keeps the outputs of every second product: it repeats those for keys, from attention,
    and up.
    """
    left_out, again = _modules(jobs, framework)
    if framework.keeps_products == "second":
        model, queries = jobs.model, jobs.model.attention_size
        keys = queries * model.kv_heads / model.num_heads
        whole = 2 * queries + 2 * keys + np.where(model.gated, 3, 2) * model.ffn_size
        again = (queries + keys + model.ffn_size) / whole
    return np.where(jobs.options.recompute == SELECTIVE, (again, 2 * left_out), 0.0)


def stage_bytes(stage: StageLoad, layer: Array, jobs: Jobs, framework: Framework) -> Array:
    """Bytes that a stage keeps of one micro-batch without logits; ``layer``: of these per layer."""
    h, split = jobs.model.hidden_size, sequence_split(jobs, framework)
    kept = stage.layers * layer + mask_bytes(jobs)
    if framework.masked_dropout:  # the embedding's mask (Korthikanti et al. 2022)
        masked = stage.embedding & ~jobs.model.gated
        kept = kept + np.where(masked, jobs.tokens * h / split, 0.0)
    ends = 2 * jobs.options.element_bytes * h  # inputs of the last norm and of the output layer
    kept = kept + np.where(stage.head, jobs.tokens * ends / split, 0.0)
    if framework.keeps_outputs:
        kept = kept + np.where(stage.head, 0.0, pp.message(jobs, framework).num_bytes)
    return np.asarray(kept)


def left_on_device(
    stage: StageLoad, kept: Array, layer: Array, jobs: Jobs, framework: Framework
) -> Array:
    """Bytes of ``kept``, a stage's for one micro-batch, on the device; ``layer``: of each layer.

    The built-in trainer does not offload the last norm, the logits and the input of a pipeline
    stage, which its schedule holds. Deferred weight gradients need everything on the device.
    """
    moves = jobs.options.offload_activations & ~jobs.defers_weight_gradients
    if not moves.any():
        return kept
    stays: Array = np.zeros(len(jobs))
    if framework.keeps_products == "all":
        given = (jobs.layout.pp > 1) & ~stage.embedding
        message = pp.message(jobs, framework).num_bytes * jobs.layout.vpp
        stays = kept - stage.layers * layer + np.where(given, message, 0.0)
    moving = framework.stashed_layers * layer / np.maximum(stage.in_flight, 1.0)
    return np.where(moves, np.minimum(kept, stays + moving), kept)


def mask_bytes(jobs: Jobs) -> Array:
    """Bytes of document masks in a micro-batch: an element per score, for each chunk."""
    scores = jobs.tokens * jobs.model.seq_length
    return np.where(jobs.masks_scores, jobs.layout.vpp * scores * jobs.options.element_bytes, 0.0)


def waiting_logits_bytes(jobs: Jobs, in_flight: Array) -> Array:
    """Bytes of logits, or their gradients, that wait on the last stage beside those in use.

    1F1B uses them at once, and so do schedules with both ends on one rank; the others return to the
    micro-batches in flight later.
    """
    one = jobs.tokens * jobs.options.element_bytes * jobs.model.vocab_size / jobs.layout.tp
    at_once = (jobs.options.schedule == ONE_F_ONE_B) | jobs.folded | jobs.options.chunked_loss
    return np.where(at_once, 0.0, np.maximum(in_flight - 1, 0) * one)


def logits_bytes(jobs: Jobs, framework: Framework) -> Array:
    """Bytes of one micro-batch's logits with all copies, or with the output layer's gradient in
    their place; the vocabulary is split by ``tp``.
    """
    e = jobs.options.element_bytes
    copies, loss = framework.logit_copies, jobs.options.fused_loss
    each = np.where(loss, np.maximum(copies, 1), copies) * e
    each = each + np.where(loss, 0.0, framework.logits_bytes)
    whole = np.where(jobs.options.chunked_loss, 0.0, jobs.tokens)
    kept = whole * each
    if framework.placeholder_gradients or framework.flat_buckets:
        # The output layer's gradient comes after the loss, beside the gradient of the logits.
        kept = np.maximum(kept, e * (whole + jobs.model.hidden_size))
    return np.asarray(kept * jobs.model.vocab_size / jobs.layout.tp)
