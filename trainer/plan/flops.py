"""Floating-point operations of one training step.

Narayanan et al. 2021 (arXiv 2104.04473), section 5.1 and appendix: matrix products only, two
operations per multiply-add, the causal attention matrix counted whole, the backward pass as twice
the forward pass. *Model* FLOPs exclude recomputation, *hardware* FLOPs include it.

Extensions: grouped-query attention projects keys and values to ``num_kv_heads * head_dim``
channels; SwiGLU has two projections up; of a mixture of experts, a token's routed and shared
experts and the router count. A sliding window counts as twice its keys, since causal masking halves
a full matrix but not a window. Integers for one model, or columns.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from trainer.plan.model import ModelConfig
from trainer.plan.sizes import Dimensions, Size, model_weights, table_weights


def _attention_core(model: Dimensions) -> Size:
    """Forward FLOPs of Q K^T and scores times V: one layer, one sequence (4 s^2 h)."""
    return 4 * model.seq_length * model.attended * model.attention_size


def _layers(model: Dimensions) -> Size:
    """Forward FLOPs of all layers on one sequence (plain GPT: 24 s h^2 + 4 s^2 h each)."""
    weights = model_weights(model, active=True)
    return 2 * model.seq_length * weights + model.num_layers * _attention_core(model)


def model_flops(model: Dimensions, global_batch: Size, trained: Size = 1) -> Size:
    """Model FLOPs of one step on B = ``global_batch`` sequences.

    Plain GPT: ``72 B s l h^2 (1 + s/(6h) + V/(12 l h))``, equation 3 of Narayanan et al. 2021
    without its recomputed forward pass. ``trained``: share of the weights that are trained; frozen
    ones have no weight gradients, so that a token costs 4N in place of 6N.
    """
    whole = _layers(model) + 2 * model.seq_length * table_weights(model)  # logits: 2 s h V
    scores = model.num_layers * _attention_core(model)
    return global_batch * (3 * whole - (1 - trained) * (whole - scores))


def executed_flops(
    model: Dimensions,
    global_batch: Size,
    recompute: str,
    keeps_products: bool,
    every: int = 1,
    chunked_loss: bool = False,
) -> float:
    """FLOPs that one step of the built-in trainer executes.

    With ``keeps_products``, ``selective`` keeps attention and products, and so repeats neither. One
    layer in ``every`` recomputes. ``chunked_loss`` computes all logits twice.
    """
    useful = model_flops(model, global_batch)
    useful += chunked_loss * global_batch * 2 * model.seq_length * table_weights(model)
    if recompute == "selective" and keeps_products:
        return float(useful)
    share = len(range(0, model.num_layers, every)) / model.num_layers
    repeated = hardware_flops(model, global_batch, recompute) - model_flops(model, global_batch)
    return float(useful + share * repeated)


def hardware_flops(model: Dimensions, global_batch: Size, recompute: Size) -> Size:
    """Hardware FLOPs of one step; ``recompute`` is a word or a column of words.

    ``full`` repeats every layer's forward pass: ``96 B s l h^2 (1 + s/(6h) + V/(16 l h))`` for a
    plain GPT (Narayanan et al. 2021, equation 3). ``selective`` repeats the attention core, ``4 B l
    s^2 h`` (Korthikanti et al. 2022, arXiv 2205.05198, section 5).
    """
    full, selective = recompute == "full", recompute == "selective"
    repeated = full * _layers(model) + selective * model.num_layers * _attention_core(model)
    return model_flops(model, global_batch) + global_batch * repeated


def speed(
    model: ModelConfig,
    world_size: int,
    dp: int,
    batch: int,
    measured: Sequence[float],
    executed: float,
) -> dict[str, Any]:
    """Rates from the median of the ``measured`` step times (s); ``executed``: hardware FLOPs."""
    median = statistics.median(measured)
    tera_per_gpu = 1e12 * median * world_size
    tokens_per_second = batch * model.seq_length / median
    return {
        "tflops_per_gpu": model_flops(model, batch) / tera_per_gpu,
        "hardware_tflops_per_gpu": executed / tera_per_gpu,
        "tokens_per_second": tokens_per_second,
        "tokens_per_second_per_gpu": tokens_per_second / world_size,
        "samples_per_second": batch / median,
        "step_time_s": {"median": median, "all": list(measured)},
        "dp": dp,
        "global_batch_size": batch,
        "parameters": model.num_parameters,
    }
