"""Bytes that a micro-batch leaves in memory until its backward pass."""

from __future__ import annotations

import numpy as np

from analysis.cost import tuning
from analysis.cost.compute import is_flash
from analysis.cost.stages import StageLoad
from search_spaces import Framework
from trainer.plan.axes import ep, pp
from trainer.plan.axes.tp import splits_sequence
from trainer.plan.jobs import FULL, NONE, ONE_F_ONE_B, SELECTIVE, Array, Jobs, Mask
from trainer.plan.sizes import Mixture, ffn_weights, latent_matrices, model_weights


def sequence_split(jobs: Jobs, framework: Framework) -> Array:
    """Ranks that split what tensor parallelism leaves whole: by sequence, or the grid by width."""
    return np.where(splits_sequence(jobs, framework), jobs.layout.tp, jobs.layout.gy)


def layer_bytes(jobs: Jobs, framework: Framework, recompute: Array) -> Array:
    """Activations that one layer keeps of one micro-batch.

    Korthikanti et al. 2022, Table 2, written for any feed-forward size, gated units and grouped
    queries, and without dropout masks where the framework keeps none or, as models with gated units
    are trained without, there are none. Of ``hidden_size`` elements a token: inputs of two norms
    and of two matrix products stay whole without sequence parallelism; queries, keys, values and
    attention's output are split by ``tp``. Models with gated units rotate queries and keys and keep
    both forms, unless layers are fused or compiled. In FP8 fused layers keep inputs of products in
    8 bits, and attention's output in both forms (Transformer Engine's Linear and LayerNormLinear).
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
    halved = np.where(jobs.options.fp8 & np.asarray(fused), 1.0, 0.0)  # bytes less in 8 bits
    whole = (ends - halved * 2 * h + masks) / sequence_split(jobs, framework)
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
    kept_scores = (recompute == NONE) | (recompute == SELECTIVE) & ~jobs.repeats_core
    written = np.where(kept_scores, scores, 0.0)
    split = split + np.where(is_flash(jobs, framework), sums, written)
    kept = whole + split / jobs.layout.tp
    only_input = e * h / sequence_split(jobs, framework)
    some = np.where(recompute == SELECTIVE, _selective(jobs, framework, kept, f), kept)
    frozen = tuning.freezes(jobs)
    if frozen.any():
        whole, split = tuning.kept_bytes(jobs, framework)
        split = split + np.where(is_flash(jobs, framework), 0.0, written)
        kept = whole / sequence_split(jobs, framework) + split / jobs.layout.tp
        some = np.where(frozen, kept, some)
    if jobs.model.mixture is not None:
        some = some + experts / jobs.tokens
    some = (
        some - np.where(recompute == SELECTIVE, discarded_bytes(jobs, framework), 0) / jobs.tokens
    )
    return np.where(recompute == FULL, jobs.tokens * only_input + routes, jobs.tokens * some)


def discarded_bytes(jobs: Jobs, framework: Framework) -> Array:
    """Bytes that repeated ``modules`` do not keep of a micro-batch, in the mean over all layers.

    Megatron Core (transformer_layer.py, multi_latent_attention.py, moe/experts.py): outputs of the
    norms that no product is fused with, which are those before latent attention and before experts;
    queries, keys and values but for the latents that they are made of; what a gate gives to the
    experts' last product; and all that is inside a feed-forward part.
    """
    if not jobs.modules.any():
        return np.zeros(len(jobs))
    model, e, tp, fused = (
        jobs.model,
        jobs.options.element_bytes,
        jobs.layout.tp,
        framework.fused_layers,
    )
    halved = np.where(jobs.options.fp8 & np.asarray(fused), 1.0, 0.0)
    inner = e * np.where(model.gated, 3 if fused else 4, 2) - halved
    norm = (e - halved) * model.hidden_size / sequence_split(jobs, framework)
    dense = np.where(jobs.repeats("mlp"), norm + inner * model.ffn_size / tp, 0.0)
    separate, experts = np.zeros(len(jobs)), np.zeros(len(jobs))
    if model.mixture is not None:
        mixture, moe = model.mixture, jobs.repeats("moe")
        share = ep.mixed_share(jobs, mixture)
        gate = (inner - e * np.where(model.gated, 2, 1)) * mixture.expert_ffn_size / jobs.layout.etp
        gate = np.where(jobs.repeats("moe_act"), ep.assigned_tokens(jobs, mixture) * gate, 0.0)
        experts = share * np.where(moe, ep.activation_bytes(jobs, mixture, fused), gate)
        shared = np.where(moe | jobs.repeats("shared_experts"), mixture.shared_ffn_size, 0.0)
        dense = dense + share * (inner * shared / tp - dense)
        separate = separate + share
    if (latent := model.latent) is not None:
        made = model.num_heads * (2 * (latent.key_size + latent.rotary_size) + latent.value_size)
        held = latent.query_rank + latent.key_value_rank + latent.rotary_size
        up = e * (made / tp - held / sequence_split(jobs, framework))
        some = np.asarray(latent.key_value_rank) > 0
        dense = dense + np.where(some & jobs.repeats("mla_up_proj"), up, 0.0)
        separate = separate + some
    norms = np.where(jobs.repeats("layernorm"), separate * norm, 0.0)
    return np.asarray(jobs.tokens * (dense + norms) + experts)


def _compiled(jobs: Jobs, framework: Framework) -> Mask:
    """Whether the built-in trainer compiles whole layers: of a gated unit that keeps both inputs
    and their product, and of rotated queries and keys one form.
    """
    whole = framework.keeps_products == "all" and jobs.model.mixture is None
    return np.asarray(jobs.options.compiled & whole)


def _shared(jobs: Jobs, framework: Framework, recompute: Array, keys: Array) -> Array:
    """Elements of a token's keys and values that attention keeps.

    Kernels with masks have no grouped queries: the built-in trainer repeats them for each query,
    in place of the output of the product.
    """
    queries = jobs.model.attention_size
    if framework.keeps_products != "all":
        return 2 * keys
    grouped = jobs.masks_scores & (keys < queries) & (recompute == NONE)
    return np.where(grouped, queries, 2 * keys)


def _experts(
    jobs: Jobs, mixture: Mixture, framework: Framework, share: Array
) -> tuple[Array | float, Array]:
    """Bytes of a micro-batch in a layer, of which ``share`` have experts: routes, and all of it.

    The built-in trainer's routes are a token's experts, their order and its inverse in int64, from
    which every repeated pass starts. Its router keeps its input and two forms of its scores in
    float32.
    """
    kept = share * ep.activation_bytes(jobs, mixture, framework.fused_layers)
    if framework.keeps_products != "all":
        return 0.0, kept
    tokens = share * jobs.tokens / jobs.layout.tp
    routes = tokens * 24 * mixture.experts_per_token
    router = tokens * (4 * jobs.model.hidden_size + 8 * mixture.num_experts)
    return routes, kept + routes + router


def _selective(jobs: Jobs, framework: Framework, everything: Array, f: Array) -> Array:
    """Bytes of a token that a layer keeps with selective recomputation; ``everything`` without.

    ``f`` is the inner size of the feed-forward part, in the mean over all layers.
    """
    h, e, tp = jobs.model.hidden_size, jobs.options.element_bytes, jobs.layout.tp
    queries = jobs.model.attention_size
    keys = queries * jobs.model.kv_heads / jobs.model.num_heads
    only_input = e * h / sequence_split(jobs, framework)
    if framework.keeps_products == "second":
        # Outputs of the products for queries, values and gate, of attention, and of the last
        # product: over tp its whole sum's summands, and both sums.
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
    """Whether selective recomputation repeats attention, and nothing else of a layer.

    torchtitan's keeps attention, and so does the built-in trainer's but for where keys go round,
    layers lie on a grid, or tokens go to experts.
    """
    if framework.keeps_products != "all":
        return jobs.repeats_core & (framework.keeps_products == "")
    grid = jobs.layout.on_grid | (jobs.layout.gy * jobs.layout.gz > 1)
    if jobs.model.mixture is not None:
        grid = grid | (jobs.model.mixture.num_experts > 0)
    return np.asarray(grid | (jobs.layout.cp > 1))


def repeated_products(jobs: Jobs, framework: Framework) -> Array:
    """Share of a layer's products that selective recomputation repeats.

    torchtitan keeps every second output: for keys, from attention, and up it repeats them. Others
    repeat those of ``modules``.
    """
    if framework.keeps_products != "second":
        return _module_products(jobs) if jobs.modules.any() else np.zeros(len(jobs))
    model, queries = jobs.model, jobs.model.attention_size
    keys = queries * model.kv_heads / model.num_heads
    whole = 2 * queries + 2 * keys + np.where(model.gated, 3, 2) * model.ffn_size
    again = (queries + keys + model.ffn_size) / whole
    return np.where(jobs.options.recompute == SELECTIVE, again, 0.0)


def _module_products(jobs: Jobs) -> Array:
    """Share of a token's products that repeated ``modules`` have, in the mean over all layers."""
    model, mixture, latent = jobs.model, jobs.model.mixture, jobs.model.latent
    again = np.where(jobs.repeats("mlp"), ffn_weights(model, model.ffn_size), 0.0)
    if mixture is not None:
        moe = jobs.repeats("moe")
        routed = mixture.experts_per_token * ffn_weights(model, mixture.expert_ffn_size)
        experts = np.where(moe, routed + mixture.num_experts * model.hidden_size, 0.0)
        shared = moe | jobs.repeats("shared_experts")
        experts = experts + np.where(shared, ffn_weights(model, mixture.shared_ffn_size), 0.0)
        again = again + ep.mixed_share(jobs, mixture) * (experts - again)
    if latent is not None:
        _, queries, _, keys, _ = latent_matrices(model, latent)
        up = (latent.key_value_rank > 0) & jobs.repeats("mla_up_proj")
        again = again + np.where(
            up, queries.inputs * queries.outputs + keys.inputs * keys.outputs, 0
        )
    return np.asarray(again * model.num_layers / model_weights(model, active=True))


def embedding_bytes(jobs: Jobs, framework: Framework) -> Array:
    """Bytes of the embedding's dropout mask on one micro-batch (Korthikanti et al. 2022)."""
    masks = jobs.tokens * jobs.model.hidden_size / sequence_split(jobs, framework)
    return np.where(framework.masked_dropout & ~jobs.model.gated, masks, 0.0)


def head_bytes(jobs: Jobs, framework: Framework) -> Array:
    """Inputs of the last norm and of the output layer, of one micro-batch."""
    kept = 2 * jobs.options.element_bytes * jobs.model.hidden_size
    return jobs.tokens * kept / sequence_split(jobs, framework)


def stage_bytes(stage: StageLoad, layer: Array, jobs: Jobs, framework: Framework) -> Array:
    """Bytes that a stage keeps of one micro-batch, logits apart, given what a layer does."""
    kept = stage.layers * layer + mask_bytes(jobs)
    kept = kept + np.where(stage.embedding, embedding_bytes(jobs, framework), 0.0)
    kept = kept + np.where(stage.head, head_bytes(jobs, framework), 0.0)
    if framework.keeps_outputs:
        kept = kept + np.where(stage.head, 0.0, pp.message(jobs, framework).num_bytes)
    return np.asarray(kept)


def left_on_device(
    stage: StageLoad, kept: Array, layer: Array, jobs: Jobs, framework: Framework
) -> Array:
    """Bytes of a micro-batch on the device, of those that a stage keeps, and each of its layers.

    The built-in trainer's last norm and logits stay, and the input of a pipeline's stage, which its
    schedule holds; with gradients of weights apart all of it comes back for them.
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
    """Masks of documents in a micro-batch: a number per score, once per chunk."""
    scores = jobs.tokens * jobs.model.seq_length
    return np.where(jobs.masks_scores, jobs.layout.vpp * scores * jobs.options.element_bytes, 0.0)


def waiting_logits_bytes(jobs: Jobs, in_flight: Array) -> Array:
    """Logits, or their gradients, that wait on the last stage beside the one at work.

    1F1B needs each at once, and so do those in which one rank has both ends; the other schedules
    come back to the micro-batches in flight later.
    """
    one = jobs.tokens * jobs.options.element_bytes * jobs.model.vocab_size / jobs.layout.tp
    at_once = (jobs.options.schedule == ONE_F_ONE_B) | jobs.folded | jobs.options.chunked_loss
    return np.where(at_once, 0.0, np.maximum(in_flight - 1, 0) * one)


def logits_bytes(jobs: Jobs, framework: Framework) -> Array:
    """Logits of one micro-batch with all their copies, or with what stands for the output layer's
    gradient; the vocabulary is split by ``tp``.
    """
    e = jobs.options.element_bytes
    copies, loss = framework.logit_copies, jobs.options.fused_loss
    each = np.where(loss, np.maximum(copies, 1), copies) * e
    each = each + np.where(loss, 0.0, framework.logits_bytes)
    whole = np.where(jobs.options.chunked_loss, 0.0, jobs.tokens)
    kept = whole * each
    if framework.placeholder_gradients or framework.flat_buckets:
        # The loss is behind when the output layer's gradient is computed, beside that of logits.
        kept = np.maximum(kept, e * (whole + jobs.model.hidden_size))
    return np.asarray(kept * jobs.model.vocab_size / jobs.layout.tp)
