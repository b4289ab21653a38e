"""The loss against torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.distributed._tools.mem_tracker import MemTracker

from trainer.model.transformer import Head
from trainer.parallel import loss as module
from trainer.parallel.loss import chunk_loss, cross_entropy
from trainer.plan.model import ModelConfig


@pytest.mark.parametrize("at_once", [1 << 24, 11, 33, 1])
def test_the_loss_is_cross_entropy_with_its_gradient(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", at_once)
    logits = (torch.randn(7, 2, 11) * 20).requires_grad_()
    targets = torch.randint(11, (2, 7))
    other = logits.detach().clone().requires_grad_()
    loss = cross_entropy(logits, targets, None)
    expected = F.cross_entropy(other.transpose(0, 1).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(loss, expected)
    (loss * 3).backward()
    (expected * 3).backward()
    torch.testing.assert_close(logits.grad, other.grad)


def test_logits_are_never_whole_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 bits, the passes need the logits, in whose place gradients come, and a chunk."""
    tokens, vocabulary, rows = 64, 1024, 4
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", rows * vocabulary)
    logits = torch.randn(tokens, 1, vocabulary, dtype=torch.bfloat16).requires_grad_()
    with MemTracker() as tracker:
        cross_entropy(logits, torch.randint(vocabulary, (1, tokens)), None).backward()
        (most,) = tracker.get_tracker_snapshot("peak").values()
    whole = 2 * logits.numel()
    assert most["Total"] < 1.5 * whole + 3 * 4 * rows * vocabulary  # in float32: 5 times as much


@pytest.mark.parametrize("at_once", [1 << 24, 14 * 5, 1])
@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
def test_a_loss_by_words_is_that_of_whole_logits_with_its_gradients(
    dtype: torch.dtype, near: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", at_once)
    torch.manual_seed(0)
    shape = {"num_layers": 1, "hidden_size": 8, "num_heads": 1, "vocab_size": 12, "seq_length": 7}
    head = Head(ModelConfig(**shape), True).to(dtype)
    torch.nn.init.normal_(head.weight, std=2)
    x = torch.randn(7, 2, 8, dtype=dtype, requires_grad=True)
    targets = torch.randint(12, (2, 7))
    targets[:, 3] = -1  # not in the loss, but among the tokens that divide it
    exact, weight = (one.detach().double().requires_grad_() for one in (x, head.weight))
    rows = F.linear(exact, weight).transpose(0, 1).flatten(0, 1)
    sum_ = F.cross_entropy(rows, targets.flatten(), ignore_index=-1, reduction="sum")
    chunk_loss(head, None, False)
    loss = head(x, None, targets)
    (loss * 3).backward()
    (sum_ / 14 * 3).backward()
    for found, expected in (
        (loss, sum_ / 14), (x.grad, exact.grad), (head.weight.grad, weight.grad)
    ):  # fmt: skip
        assert found is not None and expected is not None
        assert (found.double() - expected).abs().max() <= near * expected.abs().max()
    assert head(x, None).shape == (7, 2, 12)
