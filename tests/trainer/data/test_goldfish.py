"""The goldfish loss's masks: how many tokens, and the same for the same passage."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainer.data.goldfish import IGNORED, left_out, without
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError
from trainer.plan.sections import Goldfish

VOCABULARY = 50


def some(sequences: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(VOCABULARY, size=(sequences, length))


@pytest.mark.parametrize("k", [2, 3, 4, 10])
@pytest.mark.parametrize("mask", ["hashed", "static"])
def test_one_token_of_k_is_left_out(k: int, mask: str) -> None:
    found = left_out(some(100, 500), Goldfish(k=k, h=5, mask=mask))
    assert found[:, 4:].mean() == pytest.approx(1 / k, rel=0.05)


def test_a_passage_has_one_mask_wherever_it_stands() -> None:
    """From the h-th token of its copy on; before, the context is another."""
    goldfish, passage = Goldfish(k=3, h=4), some(1, 40, seed=1)
    masks = []
    for begin, length in ((0, 40), (7, 60), (100, 300)):
        tokens = some(1, length, seed=length)
        tokens[:, begin : begin + 40] = passage
        masks.append(left_out(tokens, goldfish)[0, begin + 3 : begin + 40])
    assert masks[0].any()
    assert (masks[0] == masks[1]).all() and (masks[0] == masks[2]).all()


@pytest.mark.parametrize("place", range(4))
def test_each_of_the_last_h_tokens_matters_and_none_before(place: int) -> None:
    tokens = np.repeat(some(1, 5), VOCABULARY, axis=0)
    tokens[:, place] = np.arange(VOCABULARY)
    found = left_out(tokens, Goldfish(k=2, h=3))[:, 4]
    assert (len(set(found.tolist())) == 2) == (place >= 2)


def test_the_order_of_the_context_matters() -> None:
    tokens = some(1000, 2)
    goldfish = Goldfish(k=2, h=2)
    forth, back = left_out(tokens, goldfish), left_out(tokens[:, ::-1], goldfish)
    assert (forth[:, 1] != back[:, 1]).mean() > 0.3


def test_tokens_without_a_whole_context_are_trained_on() -> None:
    goldfish = Goldfish(k=2, h=6)
    assert not left_out(some(50, 20), goldfish)[:, :5].any()
    assert not left_out(some(50, 5), goldfish).any()


def test_static_masks_do_not_look_at_the_tokens() -> None:
    goldfish = Goldfish(k=4, mask="static")
    assert (left_out(some(2, 20), goldfish) == left_out(some(2, 20, seed=9), goldfish)).all()
    assert np.flatnonzero(left_out(some(1, 12), goldfish)[0]).tolist() == [3, 7, 11]


def test_targets_are_ignored_where_the_mask_is() -> None:
    goldfish = Goldfish(k=2, h=2)
    tokens = torch.from_numpy(some(3, 30))
    targets = torch.from_numpy(some(3, 30, seed=5))
    found = without(tokens, targets, goldfish)
    ignored = torch.from_numpy(left_out(tokens.numpy(), goldfish))
    assert ((found == IGNORED) == ignored).all()
    assert (found[~ignored] == targets[~ignored]).all()


def test_what_is_no_mask_or_no_loss_of_deepspeed_is_refused() -> None:
    model = {"num_layers": 1, "hidden_size": 8, "num_heads": 1, "vocab_size": 8, "seq_length": 8}
    whole = {"model": model, "data": "unused"}
    with pytest.raises(ConfigError, match=r"goldfish\.k"):
        TrainConfig.parse({**whole, "goldfish": {"k": 1}})
    with pytest.raises(ConfigError, match="engine deepspeed: goldfish: it has no goldfish loss"):
        TrainConfig.parse({**whole, "goldfish": {}, "engine": "deepspeed"})
