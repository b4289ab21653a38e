"""The micro-batches of one step, as a data-parallel rank reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from trainer.config import TrainConfig
from trainer.data.goldfish import without


class Dataset(Protocol):
    """Where the tokens come from; ``trainer.data.dataset.TokenDataset`` is one."""

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
    ) -> tuple[Tensor, Tensor]:
        """Tokens and targets of one micro-batch, each int64 of shape (mbs, seq_length)."""
        ...


def micro_batches(
    config: TrainConfig, dataset: Dataset, step: int, replica: int, dp: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """A replica's tokens and targets of each micro-batch of a step, on the host.

    Targets are ``goldfish.IGNORED`` where the goldfish loss leaves them out.

    Args:
        config: what is trained.
        dataset: where the tokens come from.
        step: number of the optimizer step.
        replica: data-parallel rank.
        dp: data-parallel ranks.
    """
    for micro_batch in range(config.gas):
        tokens, targets = dataset.batch(
            step,
            micro_batch,
            replica,
            mbs=config.mbs,
            gas=config.gas,
            dp=dp,
            seq_length=config.model.seq_length,
            seed=config.seed,
        )
        if config.goldfish is not None:
            targets = without(tokens, targets, config.goldfish)
        yield tokens, targets
