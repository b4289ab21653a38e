"""What Megatron-LM's fused layers keep, and what stands for gradients that are summed already."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.cost.activations import layer_bytes, logits_bytes
from analysis.cost.memory import MemoryConstants, memory
from search_spaces.known import FRAMEWORKS
from support.gpt_jobs import gpt
from trainer.plan.jobs import NONE
from trainer.plan.sizes import Mixture

MEGATRON = FRAMEWORKS["megatron-lm"]


def test_fused_layers_keep_a_gates_inputs_and_what_rotation_gives() -> None:
    job = gpt(recompute=NONE, gated=True, kv_heads=8)
    parted = MEGATRON.with_habits(fused_layers=False)
    fewer = layer_bytes(job, parted, job.options.recompute) - layer_bytes(
        job, MEGATRON, job.options.recompute
    )
    per_token = 2 * (6144 + 768 + 4 * 6144) / 8  # queries and keys once more, the gate's result
    assert fewer[0] == pytest.approx(2048 * 4 * per_token)


@pytest.mark.parametrize("experts", [False, True])
def test_in_eight_bits_layers_keep_what_only_products_read_in_8_bits(experts: bool) -> None:
    """Transformer Engine keeps the quantized inputs of products; attention's output is kept in
    both forms, as its own backward pass needs it in 16 bits."""
    mixture = {"mixture": Mixture(8, 2, 6144, 0, 0, 1)} if experts else {}
    job = gpt(recompute=NONE, gated=True, fp8=True, tp=1, mbs=1, **mixture)
    h, f, tokens = 6144, 4 * 6144, 2048
    attention = 2 * (h + 3 * h) + 4 * 64 + 1 * h  # norm's input, q, k, v; denominators; product's
    output = 2 * h + 1 * h
    chosen = 2 * (1 * h + 2 * 2 * h + 1 * h)  # of two experts: input, gate's inputs, product
    feed_forward = 2 * h + 1 * h + (chosen if experts else 2 * 2 * f + 1 * f)
    kept = layer_bytes(job, MEGATRON, job.options.recompute)[0]
    assert kept == pytest.approx(tokens * (attention + output + feed_forward))


def test_copies_in_8_bits_are_sharded_as_the_weights_are() -> None:
    def weights(**columns: Any) -> float:
        return float(memory(gpt(dp=8, **columns), MEGATRON, MemoryConstants()).weights[0])

    whole, sharded = (weights(zero_stage=stage, fp8=True) for stage in (0, 3))
    assert whole == pytest.approx(2 * weights(zero_stage=0))
    assert sharded == pytest.approx(whole / 8)


def test_one_placeholder_stands_for_the_gradients_of_all_layers_and_one_for_the_output_layers() -> (
    None
):
    """Where logits are few, the output layer's is larger than what the loss needs."""
    plain = MEGATRON.with_habits(placeholder_gradients=False)

    def more(**columns: Any) -> float:
        job = gpt(recompute=NONE, seq_length=128, mbs=1, **columns)
        held = [memory(job, habits, MemoryConstants()) for habits in (MEGATRON, plain)]
        assert held[0].activations == held[1].activations
        return float((held[0].total - held[1].total)[0])

    layer = 12 * 6144**2 / 8
    loss, table = 8 * 128 * 51200 / 8, 2 * (128 + 6144) * 51200 / 8
    assert more(num_layers=4, pp=1) == pytest.approx(2 * layer + table - loss)
    assert more(num_layers=8, pp=1) == pytest.approx(2 * layer + table - loss)


def test_a_fused_loss_leaves_one_copy_of_the_logits() -> None:
    job = gpt(mbs=8, fused_loss=True)
    parted = MEGATRON.with_habits(placeholder_gradients=False)
    one = 2 * 2048 * 8 * 51200 / 8
    assert logits_bytes(job, parted)[0] == pytest.approx(one)
    weights = 2 * 6144 * 51200 / 8
    assert logits_bytes(job, MEGATRON)[0] == pytest.approx(one + weights)
    assert logits_bytes(gpt(mbs=8), MEGATRON)[0] == pytest.approx(4 * one)
