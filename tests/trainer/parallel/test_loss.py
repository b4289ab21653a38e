"""The loss against torch's."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from trainer.parallel.loss import cross_entropy


def test_the_loss_is_cross_entropy_with_its_gradient() -> None:
    logits = (torch.randn(7, 2, 11) * 20).requires_grad_()
    targets = torch.randint(11, (2, 7))
    other = logits.detach().clone().requires_grad_()
    loss = cross_entropy(logits, targets, None)
    expected = F.cross_entropy(other.transpose(0, 1).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(loss, expected)
    (loss * 3).backward()
    (expected * 3).backward()
    torch.testing.assert_close(logits.grad, other.grad)
