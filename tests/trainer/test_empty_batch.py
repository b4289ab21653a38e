"""A global batch of which no token is in the loss."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from support.checkpoint_cases import MODELS
from trainer.data.goldfish import IGNORED
from trainer.plan.config import TrainConfig
from trainer.runtime.device import Device
from trainer.train import Trainer


class Sequences:
    """Of zeros; their targets too, or none."""

    def __init__(self, counted: bool) -> None:
        self.counted = counted

    def samples(
        self, first: int, count: int, *, seq_length: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        tokens = torch.zeros(count, seq_length, dtype=torch.int64)
        return tokens, tokens if self.counted else torch.full_like(tokens, IGNORED)

    def starts(self, first: int, count: int, *, seq_length: int, seed: int) -> Tensor:
        return torch.zeros(count, seq_length + 1, dtype=torch.int64)


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    settings = {
        "model": MODELS["gpt"], "data": "none", "precision": "fp32", "device": "cpu",
        "loss_mask": "none", "validation": {"data": "none", "steps": 1},
    }  # fmt: skip
    yield Trainer(TrainConfig.parse(settings), Device("cpu"))
    dist.destroy_process_group()


def test_weights_stay_numbers_and_training_goes_on(trainer: Trainer) -> None:
    empty = trainer.step(0, Sequences(counted=False))
    assert (empty.loss, empty.grad_norm) == (0, 0)
    assert trainer.step(1, Sequences(counted=True)).loss > 0
    assert all(parameter.isfinite().all() for parameter in trainer.stages[0].parameters())


def test_held_out_data_without_a_token_has_no_loss(trainer: Trainer) -> None:
    assert math.isnan(trainer.validate(Sequences(counted=False)))
    assert trainer.validate(Sequences(counted=True)) > 0
