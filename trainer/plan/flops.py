"""Floating-point operations of one training step, counted as the field does.

Narayanan et al. 2021 (arXiv 2104.04473), section 5.1 and appendix: matrix products only, two
operations per multiply-add, the attention matrix counted whole although half of it is masked, and
the backward pass as twice the forward pass. Their equation 3 includes the forward pass that full
recomputation repeats. *Model* FLOPs leave every repeated operation out, so that recomputing more
never looks faster; *hardware* FLOPs are what the device really executes.

Extensions, which vanish for the plain GPT of the paper:

* grouped-query attention: keys and values are projected to ``num_kv_heads * head_dim`` channels
  instead of ``h``; scores and their product with the values keep all ``num_heads`` heads;
* SwiGLU: two projections up instead of one; the feed-forward size is ``f`` instead of ``4 h``.

Of a mixture of experts the products that a token takes part in count: of its chosen experts, the
shared ones, the router. A window of attention counts as twice its keys, since of the whole matrix
half is masked and of the window nothing.

Written once for a model, exactly and in whole numbers, and for columns of them.
"""

from __future__ import annotations

from trainer.plan.sizes import Dimensions, Size, model_weights, table_weights


def _attention_core(model: Dimensions) -> Size:
    """Forward FLOPs of Q K^T and of the scores times V: one layer, one sequence (4 s^2 h)."""
    return 4 * model.seq_length * model.attended * model.attention_size


def _layers(model: Dimensions) -> Size:
    """Forward FLOPs of all layers on one sequence (of a plain GPT's: 24 s h^2 + 4 s^2 h)."""
    weights = model_weights(model, active=True)
    return 2 * model.seq_length * weights + model.num_layers * _attention_core(model)


def _logits(model: Dimensions) -> Size:
    """Forward FLOPs of the output layer on one sequence (2 s h V)."""
    return 2 * model.seq_length * table_weights(model)


def model_flops(model: Dimensions, global_batch: Size) -> Size:
    """FLOPs that one step needs, whatever is recomputed.

    Plain GPT: ``72 B s l h^2 (1 + s/(6h) + V/(12 l h))``, equation 3 of Narayanan et al. 2021
    without its recomputed forward pass.

    Args:
        model: shape; its ``seq_length`` is s and its ``vocab_size`` V.
        global_batch: B, sequences per step over all replicas.

    Returns:
        FLOPs of forward and backward pass, of one model exactly (an integer).
    """
    return 3 * global_batch * (_layers(model) + _logits(model))


def hardware_flops(model: Dimensions, global_batch: Size, recompute: Size) -> Size:
    """FLOPs that one step executes.

    ``full`` repeats every layer's forward pass, for a plain GPT
    ``96 B s l h^2 (1 + s/(6h) + V/(16 l h))`` (Narayanan et al. 2021, equation 3); ``selective``
    repeats the attention core only, ``4 B l s^2 h`` (Korthikanti et al. 2022, arXiv 2205.05198,
    section 5); ``none`` repeats nothing.

    Args:
        model: shape.
        global_batch: B, sequences per step over all replicas.
        recompute: what the backward pass computes again: ``none``, ``selective`` or ``full``; or
            a column of these words.
    """
    full, selective = recompute == "full", recompute == "selective"
    repeated = full * _layers(model) + selective * model.num_layers * _attention_core(model)
    return model_flops(model, global_batch) + global_batch * repeated
