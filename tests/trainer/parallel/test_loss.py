"""The loss against torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.distributed._tools.mem_tracker import MemTracker

from trainer.parallel import loss as module
from trainer.parallel.loss import cross_entropy


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
    """Of 16 bits, the passes need the logits, their gradient and a chunk."""
    tokens, vocabulary, rows = 64, 1024, 4
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", rows * vocabulary)
    logits = torch.randn(tokens, 1, vocabulary, dtype=torch.bfloat16).requires_grad_()
    with MemTracker() as tracker:
        cross_entropy(logits, torch.randint(vocabulary, (1, tokens)), None).backward()
        (most,) = tracker.get_tracker_snapshot("peak").values()
    whole = 2 * logits.numel()
    assert most["Total"] < 2.5 * whole + 3 * 4 * rows * vocabulary  # in float32: 5 times as much
