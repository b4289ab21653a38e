"""Samples: which tokens a replica reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from support.megatron_files import MEGATRON_CODES, write_megatron
from trainer.data.batches import Consumed, document_bounds, micro_batches
from trainer.data.dataset import TokenDataset, shuffled
from trainer.data.goldfish import IGNORED
from trainer.model.attention import document_starts
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError
from trainer.plan.sections import Documents


@pytest.fixture
def counting(tmp_path: Path) -> TokenDataset:
    """Tokens 0, 1, 2, ... 4000, so that a token says where in the stream it stands."""
    write_megatron(tmp_path / "n", [list(range(1500)), list(range(1500, 4001))], "int32")
    return TokenDataset(tmp_path / "n", vocab_size=4001)


def global_batch(
    data: TokenDataset, step: int, mbs: int, gas: int, dp: int, seed: int = 1, seq_length: int = 10
) -> torch.Tensor:
    config = TrainConfig.parse(
        {
            "model": {
                "num_layers": 1,
                "hidden_size": 8,
                "num_heads": 1,
                "vocab_size": 4001,
                "seq_length": seq_length,
            },
            "data": "counting",
            "mbs": mbs,
            "gas": gas,
            "seed": seed,
        }
    )
    before = Consumed().before(step, mbs * gas * dp)
    return torch.cat(
        [
            tokens
            for replica in range(dp)
            for tokens in micro_batches(config, data, before, replica).tokens
        ]
    )


@pytest.mark.parametrize("dtype", MEGATRON_CODES)
def test_every_number_type_of_megatron_is_read(tmp_path: Path, dtype: str) -> None:
    write_megatron(tmp_path / "x", [[1, 2, 3], [4, 5, 6, 7, 8, 9]], dtype)
    data = TokenDataset(tmp_path / "x", vocab_size=10)
    tokens, targets = data.samples(0, 1, seq_length=8, seed=0)
    assert tokens.dtype == targets.dtype == torch.int64
    assert tokens.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]]
    assert targets.tolist() == [[2, 3, 4, 5, 6, 7, 8, 9]]


def test_targets_are_the_tokens_one_later(counting: TokenDataset) -> None:
    tokens, targets = counting.samples(50, 4, seq_length=10, seed=7)
    assert tokens.shape == targets.shape == (4, 10)
    assert torch.equal(targets, tokens + 1)


@pytest.mark.parametrize(
    ("mbs", "gas", "dp"),
    [(24, 1, 1), (1, 24, 1), (1, 1, 24), (2, 3, 4), (4, 2, 3), (3, 8, 1), (6, 1, 4)],
)
def test_the_global_batch_does_not_depend_on_its_split(
    counting: TokenDataset, mbs: int, gas: int, dp: int
) -> None:
    for step in (0, 5, 40):
        expected = global_batch(counting, step, mbs=12, gas=2, dp=1)
        assert torch.equal(global_batch(counting, step, mbs, gas, dp), expected)


def test_an_epoch_visits_every_sample_once_in_an_order_of_its_own(counting: TokenDataset) -> None:
    epochs = [global_batch(counting, epoch, 400, 1, 1)[:, 0].tolist() for epoch in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(0, 4000, 10))
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_seed_decides_the_order(counting: TokenDataset) -> None:
    first = global_batch(counting, 0, 8, 1, 1, seed=1)
    assert torch.equal(first, global_batch(counting, 0, 8, 1, 1, seed=1))
    assert not torch.equal(first, global_batch(counting, 0, 8, 1, 1, seed=2))


@settings(max_examples=60)
@given(st.integers(1, 700), st.integers(0, 2**63), st.integers(0, 1000))
def test_a_shuffle_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    assert sorted(shuffled(i, size, seed, epoch) for i in range(size)) == list(range(size))


def test_a_shuffle_leaves_no_visible_order() -> None:
    """Rank correlation of 4000 positions with their images; its deviation is 1/63 by chance."""
    images = np.array([shuffled(i, 4000, 5, 0) for i in range(4000)])
    assert abs(np.corrcoef(np.arange(4000), images)[0, 1]) < 0.08
    steps = np.abs(np.diff(images))
    assert abs(steps.mean() / (4000 / 3) - 1) < 0.08


def test_a_token_outside_the_vocabulary_is_an_input_error(tmp_path: Path) -> None:
    write_megatron(tmp_path / "x", [[1, 2, 300, 4]], "int32")
    data = TokenDataset(tmp_path / "x", vocab_size=257)
    with pytest.raises(ConfigError, match=r"x\.bin: token 300 .* vocabulary of 257"):
        data.samples(0, 1, seq_length=3, seed=0)


def test_data_shorter_than_one_sample_is_an_input_error(tmp_path: Path) -> None:
    write_megatron(tmp_path / "x", [[1, 2, 3, 4]], "int32")
    data = TokenDataset(tmp_path / "x", vocab_size=10)
    with pytest.raises(ConfigError, match="fewer than one sample of seq_length 4"):
        data.samples(0, 1, seq_length=4, seed=0)


@pytest.fixture
def documents(tmp_path: Path) -> TokenDataset:
    """Documents of 3, 5, 1 and 12 tokens, 0 to 20; samples of 5 begin at 0, 5, 10 and 15."""
    lengths, begin, parts = (3, 5, 1, 12), 0, []
    for length in lengths:
        parts.append(list(range(begin, begin + length)))
        begin += length
    write_megatron(tmp_path / "d", parts, "uint16")
    return TokenDataset(tmp_path / "d", vocab_size=21)


def test_where_documents_begin_is_told_for_each_token(documents: TokenDataset) -> None:
    tokens, _ = documents.samples(0, 4, seq_length=5, seed=3)
    starts = documents.starts(0, 4, seq_length=5, seed=3)
    expected = {0: [0, 0, 0, 3, 3, 3], 5: [0, 0, 0, 3, 4, 4], 10: [0] * 6, 15: [0] * 6}
    assert dict(zip(tokens[:, 0].tolist(), starts.tolist(), strict=True)) == expected


def test_the_first_token_of_a_document_is_no_target(documents: TokenDataset) -> None:
    """It does not follow from what is before it."""
    config = TrainConfig.parse(
        {
            "model": {
                "num_layers": 1, "hidden_size": 8, "num_heads": 1, "vocab_size": 21,
                "seq_length": 5,
            },
            "data": "documents", "mbs": 4, "documents": {}, "seed": 3,
        }
    )  # fmt: skip
    found = micro_batches(config, documents, 0, 0)
    (tokens,), (targets,), (bounds,) = found
    masked = {
        (row[0], place)
        for row, of_row in zip(tokens.tolist(), targets.tolist(), strict=True)
        for place, target in enumerate(of_row)
        if target == IGNORED
    }
    assert masked == {(0, 2), (5, 2), (5, 3)}
    told = dict(zip(tokens[:, 0].tolist(), bounds.tolist(), strict=True))
    assert told == {0: [0, 3, 5, 5], 5: [0, 3, 4, 5], 10: [0, 5, 5, 5], 15: [0, 5, 5, 5]}
    quiet = config.model_copy(update={"documents": Documents(eod_mask_loss=False)})
    assert (micro_batches(quiet, documents, 0, 0).targets[0] != IGNORED).all()


def test_bounds_of_a_steps_documents_have_one_size() -> None:
    """A pipeline joins them."""
    starts = [torch.tensor([[0, 0, 0, 0, 0]]), torch.tensor([[0, 1, 2, 3, 4]])]
    few, many = document_bounds(starts)
    assert few.tolist() == [[0] + [5] * 7]
    assert many.tolist() == [[0, 1, 2, 3, 4] + [5] * 3]
    assert document_starts(torch.cat((few, many)), 5).equal(torch.cat(starts))
    assert document_bounds(starts[:1])[0].tolist() == [[0, 5]]


def test_a_mask_leaves_tokens_out_of_the_loss(documents: TokenDataset, tmp_path: Path) -> None:
    write_megatron(tmp_path / "m", [[int(token % 2 == 0) for token in range(21)]], "uint8")
    data = TokenDataset(tmp_path / "d", vocab_size=21, loss_mask=tmp_path / "m")
    tokens, targets = data.samples(0, 4, seq_length=5, seed=3)
    even = (tokens + 1) % 2 == 0
    assert torch.equal(targets, torch.where(even, tokens + 1, torch.full_like(tokens, IGNORED)))


def test_a_mask_of_another_length_is_an_input_error(tmp_path: Path) -> None:
    write_megatron(tmp_path / "d", [[1, 2, 3]], "uint8")
    write_megatron(tmp_path / "m", [[1, 1]], "uint8")
    with pytest.raises(ConfigError, match=r"m\.bin holds 2 numbers, and .*d\.bin 3 tokens"):
        TokenDataset(tmp_path / "d", 10, loss_mask=tmp_path / "m")
