"""The micro-batches of one step, as a data-parallel rank reads them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trainer.data.goldfish import IGNORED, without
from trainer.plan.config import TrainConfig


class Dataset(Protocol):
    """Source of tokens, such as ``trainer.data.dataset.TokenDataset``."""

    def samples(
        self, first: int, count: int, *, seq_length: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        """Tokens and targets of consecutive samples, each int64 (count, seq_length).

        ``first`` counts from the start of training; the seed orders samples.
        """

    def starts(self, first: int, count: int, *, seq_length: int, seed: int) -> Tensor:
        """Start of each token's document in its sample, int64 (count, seq_length + 1)."""


class Consumed(NamedTuple):
    """Training progress at the start of this run: a checkpoint's record, or zero."""

    steps: int = 0
    samples: int = 0

    def before(self, step: int, global_batch: int) -> int:
        """Samples read before this step, if each step of this run reads ``global_batch``."""
        return self.samples + (step - self.steps) * global_batch


class Batches(NamedTuple):
    """The micro-batches of a step, on one rank: each list has one tensor per micro-batch."""

    tokens: list[Tensor]
    targets: list[Tensor]  # ``goldfish.IGNORED`` where a target is not in the loss
    bounds: list[Tensor]
    """Where documents begin in each sample, and where it ends, int32 (count, any number).

    Empty where documents do not matter.
    """

    def each(self, change: Callable[[Tensor], Tensor]) -> Batches:
        """These batches with ``change`` applied to every tensor."""
        return Batches(*([change(tensor) for tensor in part] for part in self))


def micro_batches(config: TrainConfig, dataset: Dataset, before: int, replica: int) -> Batches:
    """A replica's micro-batches of a step, on the host, after ``before`` samples of earlier steps.

    A step's samples go to the first replica, by its micro-batches, then to the next.
    """
    found = Batches([], [], [])
    begun: list[Tensor] = []
    for micro_batch in range(config.gas):
        first = before + (replica * config.gas + micro_batch) * config.mbs
        shape = {"seq_length": config.model.seq_length, "seed": config.seed}
        tokens, targets = dataset.samples(first, config.mbs, **shape)
        if config.goldfish is not None:
            targets = without(tokens, targets, config.goldfish)
        if config.documents is not None:
            starts = dataset.starts(first, config.mbs, **shape)
            if config.documents.eod_mask_loss:
                targets = targets.masked_fill(starts[:, 1:] != starts[:, :-1], IGNORED)
            if config.splits_samples:
                begun.append(starts[:, :-1])
        found.tokens.append(tokens)
        found.targets.append(targets)
    return found._replace(bounds=document_bounds(begun))


def document_bounds(starts: list[Tensor]) -> list[Tensor]:
    """``Batches.bounds`` from the start of each token's document.

    Padded with empty documents to the same power of 2 for all, since a pipeline joins them; not
    more, since the backward pass of flash attention takes memory for empty ones, too.
    """
    first = [[row.unique_consecutive() for row in micro_batch] for micro_batch in starts]
    most = max((len(row) for rows in first for row in rows), default=0)
    found = []
    for rows, micro_batch in zip(first, starts, strict=True):
        length = micro_batch.size(1)
        bounds = pad_sequence(rows, batch_first=True, padding_value=length)
        missing = (1 << most.bit_length()) - bounds.size(1)
        found.append(F.pad(bounds, (0, missing), value=length).int())
    return found


class BatchesAhead:
    """A rank's batches, read one step ahead by a thread."""

    def __init__(self, read: Callable[[int], Batches]) -> None:
        self.read = read
        self.thread = ThreadPoolExecutor(1, "batches")
        self.coming: tuple[int, Future[Batches]] | None = None

    def take(self, step: int) -> Batches:
        """Batches of this step; reading the next step's begins. Raises what reading raised."""
        found = self.coming
        if found is None or found[0] != step:  # the first step, or not the next one
            found = (step, self.thread.submit(self.read, step))
        batches = found[1].result()
        self.coming = (step + 1, self.thread.submit(self.read, step + 1))
        return batches
