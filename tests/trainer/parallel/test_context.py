"""Context parallelism: who holds which positions, and what is refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import trainer.parallel.context  # the operators' names
from trainer.parallel.attention import attend_block, block_gradients
from trainer.plan.axes.cp import held_chunks
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError

LENGTH = 24


@pytest.mark.parametrize("cp", [2, 3, 4])
def test_every_rank_has_as_many_pairs_of_queries_and_keys(cp: int) -> None:
    held = [[*itertools.chain(*held_chunks(LENGTH, rank, cp))] for rank in range(cp)]
    assert sorted(itertools.chain(*held)) == list(range(LENGTH))
    assert len({sum(position + 1 for position in positions) for positions in held}) == 1


def test_one_rank_holds_all() -> None:
    assert held_chunks(LENGTH, 0, 1) == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_a_block_is_attention_with_the_sum_that_joins_it_to_others(
    dtype: torch.dtype, causal: bool
) -> None:
    """Four heads share two keys; one block is the whole."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, heads, 12, 6).to(dtype) for heads in (4, 2, 2))
    leaves = [x.float().requires_grad_() for x in (query, key, value)]
    expected = F.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=True)
    grad = torch.randn_like(expected).to(dtype)
    expected.backward(grad.float())
    scores = query.float() @ key.float().repeat_interleave(2, 1).mT / math.sqrt(6)
    if causal:
        scores.masked_fill_(torch.ones(12, 12, dtype=torch.bool).triu(1), -math.inf)
    found = attend_block(query, key, value, causal)
    grads = block_gradients(grad, query, key, value, found, causal)
    tolerance = (
        {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.1, "rtol": 0.05}
    )
    close = 1e-5 if dtype == torch.float32 else 1e-3  # of exponentials in 16 bits
    torch.testing.assert_close(found.log_sum, scores.logsumexp(-1), atol=close, rtol=close)
    torch.testing.assert_close(found.output.float(), expected.detach(), **tolerance)
    for one, leaf in zip(grads, leaves, strict=True):
        torch.testing.assert_close(one.float(), leaf.grad, **tolerance)


def test_the_compiler_expects_as_many_channels_of_the_ring_as_values_have() -> None:
    with FakeTensorMode():
        query, key, value = (torch.empty(2, 4, 12, channels) for channels in (24, 24, 16))
        output, log_sum = trainer.parallel.context._ring(query, key, value, "no group")
    assert output.shape == (2, 4, 12, 16) and log_sum.shape == (2, 4, 12)


MODEL = {"num_layers": 2, "hidden_size": 16, "num_heads": 4, "vocab_size": 32, "seq_length": 12}


@pytest.mark.parametrize(
    ("values", "ranks", "said"),
    [
        ({"cp": 4}, 4, "seq_length 12 by 2 * cp 4"),
        ({"cp": 3}, 4, "tp 1 * cp 3 * pp 1 does not divide the number of ranks, 4"),
        (
            {"cp": 2, "tp": 4, "sequence_parallel": True},
            8,
            "seq_length 12 by tp 4 * cp 2 (sequence_parallel)",
        ),
        ({"cp": 2, "weight_shard": 3}, 4, "weight_shard 3 does not divide dp 2 * cp 2"),
        ({"cp": 2, "quantize_gradients": True}, 2, "quantize_gradients needs split gradients"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(values: dict[str, Any], ranks: int, said: str) -> None:
    config = TrainConfig.parse({"model": MODEL, "data": "unused", **values})
    with pytest.raises(ConfigError) as caught:
        config.check(ranks)
    assert said in str(caught.value)


def test_states_are_split_over_all_ranks_with_the_same_weights() -> None:
    config = TrainConfig.parse({"model": MODEL, "data": "unused", "cp": 2, "zero_stage": 3})
    assert config.place(4).weight_shard == 4
    assert config.data_parallel(4) == 2
