"""Batches that are read one step ahead of the device."""

from __future__ import annotations

import threading

import pytest
import torch

from trainer.data.batches import Batches, BatchesAhead
from trainer.plan.limits import ConfigError

DEADLINE_S = 250.0


def numbered(step: int) -> Batches:
    return [torch.full((1, 2), step)], [torch.full((1, 2), step + 1)]


def test_the_next_step_is_read_while_this_one_is_worked_on() -> None:
    reading = threading.Event()

    def read(step: int) -> Batches:
        if step == 6:
            reading.set()
        return numbered(step)

    ahead = BatchesAhead(read)
    ahead.take(5)
    assert reading.wait(DEADLINE_S)  # nobody has asked for it
    for step in (6, 7, 3, 4):  # 3: a run that goes on from an earlier checkpoint
        tokens, targets = ahead.take(step)
        assert (int(tokens[0][0, 0]), int(targets[0][0, 0])) == (step, step + 1)


def test_a_step_that_cannot_be_read_fails_when_it_is_its_turn() -> None:
    def read(step: int) -> Batches:
        if step == 1:
            raise ConfigError("token 9 is not in the vocabulary")
        return numbered(step)

    ahead = BatchesAhead(read)
    ahead.take(0)
    with pytest.raises(ConfigError, match="token 9"):
        ahead.take(1)
