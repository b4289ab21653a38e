"""The training loop: build a model over the ranks of the process group and run its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from trainer.config import TrainConfig


class Dataset(Protocol):
    """Where the tokens come from; ``trainer.data.TokenDataset`` is one."""

    def batch(
        self,
        step: int,
        micro_batch: int,
        replica: int,
        *,
        mbs: int,
        gas: int,
        dp: int,
        seq_length: int,
        seed: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and targets of one micro-batch, each int64 of shape (mbs, seq_length)."""
        ...


def train(
    config: TrainConfig, dataset: Dataset, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Train for ``config.steps`` steps on every rank of the default process group.

    The process group must exist and the device be set (``trainer.device``).

    Args:
        config: what to train and how.
        dataset: gives each replica's micro-batches.
        progress: called with one line after every step.

    Returns:
        On every rank: ``step_times_s``, ``losses`` (global mean of each step), ``grad_norms``
        (before clipping), ``skipped_steps`` and ``peak_memory_bytes`` (this rank's).

    Raises:
        ConfigError: if the configuration cannot run on so many ranks.
    """
    raise NotImplementedError
