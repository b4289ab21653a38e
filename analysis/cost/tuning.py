"""Memory and work of fine-tuning with frozen weights, where they differ from full training's.

LoRA (Hu et al. 2021) trains two thin matrices beside each target; QLoRA (Dettmers et al. 2023)
stores the layers' frozen matrices in NF4. Columns are 1 or 0 for jobs that train every weight, so
that formulas of full training stay as they are.
"""

from __future__ import annotations

import numpy as np

from search_spaces import Framework
from trainer.plan.jobs import ADAPTED_TARGETS, FULL_TUNING, QLORA, Array, Jobs, Mask
from trainer.plan.sizes import layer_weights, model_weights, table_weights

_ATTENTION, _LINEAR = ADAPTED_TARGETS["attention"], ADAPTED_TARGETS["linear"]
ADAPTER_KERNELS = 5.0
"""Kernels beside a target's own: cast, two products, scale, sum; a plain layer has about 30."""


def freezes(jobs: Jobs) -> Mask:
    """Whether all weights but adapters are frozen."""
    return np.asarray(jobs.options.tuning != FULL_TUNING)


def quantizes(jobs: Jobs) -> Mask:
    """Whether frozen matrices of layers are quantized."""
    return np.asarray(jobs.options.tuning == QLORA)


def target_widths(jobs: Jobs) -> tuple[Array, Array, Array]:
    """Number, summed inputs and summed outputs of a dense layer's targets; q, k, v, gate and up
    count apart."""
    model, targets = jobs.model, jobs.options.lora_targets
    h, f, q = model.hidden_size, model.ffn_size, model.attention_size
    kv = model.kv_heads * model.head_dim
    ups = np.where(model.gated, 2.0, 1.0)
    whole, linear = targets <= max(_ATTENTION, _LINEAR), targets == _LINEAR
    number = 2 + np.where(whole, 2.0, 0.0) + np.where(linear, ups + 1, 0.0)
    inputs = 2 * h + np.where(whole, h + q, 0.0) + np.where(linear, ups * h + f, 0.0)
    outputs = q + kv + np.where(whole, kv + h, 0.0) + np.where(linear, ups * f + h, 0.0)
    return number, np.asarray(inputs), np.asarray(outputs)


def layer_adapters(jobs: Jobs) -> Array:
    """Parameters of one layer's adapters: r (in + out) for each target."""
    _, inputs, outputs = target_widths(jobs)
    return np.asarray(jobs.options.lora_rank * (inputs + outputs))


def trained_share(jobs: Jobs) -> Array:
    """Share of the parameters that is trained; 1 for full training."""
    if not freezes(jobs).any():
        return np.ones(len(jobs))
    adapters = jobs.model.num_layers * layer_adapters(jobs)
    tables = np.where(jobs.model.tied_embeddings, 1.0, 2.0) * table_weights(jobs.model)
    share = adapters / (model_weights(jobs.model) + tables)
    return np.where(freezes(jobs), share, 1.0)


def gathered_share(jobs: Jobs, framework: Framework) -> Array:
    """Bytes of a gathered weight over those of an unquantized one; weights travel as stored."""
    narrow = framework.quantized_bytes / jobs.options.element_bytes
    return np.where(quantizes(jobs), narrow, 1.0)


def tuned_states(
    states: dict[str, Array],
    jobs: Jobs,
    framework: Framework,
    parameters: Array,
    tables: Array,
    layers: Array,
) -> dict[str, Array]:
    """States of a rank: where weights are frozen, only adapters have gradients and moments.

    A reference model beside full training (DPO) is one more frozen copy; beside adapters it is the
    model without them. ``states`` are full training's. Of the rank's ``parameters`` before state
    sharding, ``tables`` are embedding and output layer; ``layers`` are its stage's.
    """
    frozen, placement = freezes(jobs), jobs.placement
    if not (frozen | jobs.options.reference_model).any():
        return states
    copy = jobs.options.element_bytes * parameters / placement.weight_shard
    reference = np.where(jobs.options.reference_model & ~frozen, copy, 0.0)
    adapters = layers * layer_adapters(jobs) / jobs.layout.layer_ranks
    each = _adapter_bytes(jobs, framework) / 4
    e, quantized = jobs.options.element_bytes, quantizes(jobs)
    # No framework quantizes embedding and output layer.
    stored = np.where(quantized, framework.quantized_bytes, e) * (parameters - tables)
    stored = stored + np.where(quantized, framework.unquantized_bytes, e) * tables
    tuned = {
        "weights": (stored + each * adapters) / placement.weight_shard,
        "secondary": np.zeros(len(jobs)),
        "gradients": each * adapters / placement.gradient_shard,
        "optimizer": 2 * each * adapters / placement.optimizer_shard,
    }
    found = {name: np.where(frozen, tuned[name], whole) for name, whole in states.items()}
    return {**found, "weights": found["weights"] + reference}


def _adapter_bytes(jobs: Jobs, framework: Framework) -> Array:
    """Bytes of an adapter's parameter, its gradient and its moments together."""
    beside_plain, beside_quantized = framework.adapter_bytes
    return np.where(quantizes(jobs), beside_quantized, beside_plain)


def kept_bytes(jobs: Jobs, framework: Framework) -> tuple[Array, Array]:
    """Bytes that one dense layer with adapters keeps of a token: whole on each tp rank, and split.

    Counted with torch's saved tensors for transformers' Llama with PEFT, to 0.1 %: the two norms
    in float32; queries, keys, values and attention's output; the gated unit's three; and each
    target's input. Float32 adapters each take a copy of their input, in the format in which they
    compute; 16-bit ones share the existing input. A frozen matrix needs none. Dropout makes a copy
    of its own and a mask of one byte (torch's native_dropout). That exceeds what full training
    keeps. Compiled layers keep the operands of elementwise results: residuals, and products.
    """
    model, e, targets = jobs.model, jobs.options.element_bytes, jobs.options.lora_targets
    h, f, q = model.hidden_size, model.ffn_size, model.attention_size
    kv = model.kv_heads * model.head_dim
    own = _adapter_bytes(jobs, framework) > 8
    drops = jobs.options.lora_dropout > 0
    copy = np.where(framework.autocast_layers | ~own, e, 4.0)
    each = np.where(own | drops, copy, 0.0) + np.where(drops, 1.0, 0.0)
    number, inputs, _ = target_widths(jobs)
    linear = targets == _LINEAR
    inner = np.where(linear, f, 0.0) + np.where(targets <= max(_ATTENTION, _LINEAR), q, 0.0)
    # Without copies q, k and v share one input, gate and up another; attention's output is kept
    # anyway.
    once = np.where(own | drops, 0.0, e)
    whole = np.where(framework.fused_layers, e, 4.0) * 2 * h + each * (inputs - inner)
    whole = whole + once * np.where(linear, 2.0, 1.0) * h
    gate = np.where(model.gated, 2 if framework.fused_layers else 3, 1) * f
    split = e * (2 * q + 2 * kv + gate) + each * inner + once * np.where(linear, f, 0.0)
    if framework.compiled_layers:
        whole = 2 * e * h + np.where(drops, 1.0, 0.0) * (inputs - inner)
        gate = np.where(model.gated, 2, 1) * f
        split = e * (2 * q + 2 * kv + gate) + np.where(drops, 1.0, 0.0) * inner
    thin = np.where(own & ~np.asarray(framework.autocast_layers), 4.0, e)
    split = split + thin * jobs.options.lora_rank * number + 4 * model.num_heads
    # Autocast's 16-bit copies of float32 adapters are a layer's, not a token's.
    cast = np.where(own & framework.autocast_layers, e * layer_adapters(jobs), 0.0)
    split = split + cast / jobs.tokens
    return np.asarray(whole), np.asarray(split)


def dequantized_bytes(jobs: Jobs) -> Array:
    """Bytes of the one matrix of a quantized model that is dequantized to 16 bits for use."""
    largest = jobs.model.hidden_size * jobs.model.ffn_size / jobs.layout.tp
    return np.where(quantizes(jobs), jobs.options.element_bytes * largest, 0.0)


def weight_passes(jobs: Jobs) -> Array:
    """Matrix products of the backward pass per one of the forward pass: with frozen weights only
    the input's gradient, so that a token takes 4N instead of 6N FLOPs."""
    return np.where(freezes(jobs), 1.0 + trained_share(jobs), 2.0)


def moved_bytes(jobs: Jobs, framework: Framework) -> Array:
    """Bytes that memory moves in a layer's forward pass in addition to full training's: adapters
    read and copy their inputs, write their outputs and add them (compiled: read, and add);
    quantized weights are read, and written in 16 bits."""
    _, inputs, outputs = target_widths(jobs)
    e = jobs.options.element_bytes
    copies, sums = (1, 1) if framework.compiled_layers else (2, 3)
    beside = jobs.tokens * e * (copies * inputs + sums * outputs) / jobs.layout.tp
    wide = (framework.quantized_bytes + e) * layer_weights(jobs.model) / jobs.layout.layer_ranks
    return np.where(freezes(jobs), beside, 0.0) + np.where(quantizes(jobs), wide, 0.0)


def launched(jobs: Jobs) -> Array:
    """Kernels of a layer relative to one without adapters."""
    number, _, _ = target_widths(jobs)
    return np.where(freezes(jobs), 1 + ADAPTER_KERNELS * number / 30, 1.0)
