"""The learning rate over the steps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError
from trainer.plan.sections import LRScheduler


def factors(steps: int, **settings: Any) -> list[float]:
    return [LRScheduler(**settings).factor(step) for step in range(steps)]


def test_by_itself_the_rate_is_constant() -> None:
    assert factors(3) == [1.0, 1.0, 1.0]


def test_it_rises_stays_and_falls() -> None:
    """Warm-up, stable, decay: the last two of eight steps, and one that would follow."""
    found = factors(10, warmup_steps=4, total_steps=8, decay_ratio=0.25, min_lr_factor=0.2)
    assert found == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1, 0.6, 0.2, 0.2])


def test_a_cosine_after_a_warm_up_is_that_of_torch() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    up = LinearLR(optimizer, 1 / 5, 1.0, 4)
    theirs = SequentialLR(optimizer, [up, CosineAnnealingLR(optimizer, 15, 0.1)], [5])
    expected = []
    for _ in range(20):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    settings = {"warmup_steps": 5, "total_steps": 20, "min_lr_factor": 0.1}
    assert factors(20, decay_type="cosine", **settings) == pytest.approx(expected)


def test_a_square_root_falls_fast_first() -> None:
    found = factors(5, total_steps=4, decay_type="sqrt")
    assert found == pytest.approx([1 - math.sqrt(n / 4) for n in range(5)])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"decay_type": "cosine"}, "decay_type cosine without an end: set total_steps"),
        ({"min_lr_factor": 0.1}, "min_lr_factor 0.1 without an end"),
        ({"warmup_steps": 9, "total_steps": 8}, "more than total_steps 8"),
        ({"warmup_steps": 5, "total_steps": 8, "decay_ratio": 0.5}, "a decay of 4 steps"),
        ({"decay_ratio": 1.5, "total_steps": 8}, "less than or equal to 1"),
        ({"decay_type": "exp", "total_steps": 8}, "'linear', 'sqrt' or 'cosine'"),
        ({"warm_up_steps": 8}, "Extra inputs are not permitted"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match="lr_scheduler") as refused:
        TrainConfig.parse({"model": MODEL, "data": "x", "lr_scheduler": settings})
    assert says in str(refused.value)


MODEL = {"num_layers": 1, "hidden_size": 8, "num_heads": 1, "vocab_size": 8, "seq_length": 8}
