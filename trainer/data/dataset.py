"""Training samples from a memory-mapped token file, the same for every parallel layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from trainer.data.goldfish import IGNORED, mix
from trainer.data.indexed import read_index
from trainer.plan.limits import ConfigError


class TokenDataset:
    """Tokens of an indexed dataset as one stream, cut into samples and shuffled.

    Sample ``i`` has tokens ``i * seq_length`` to ``(i + 1) * seq_length`` inclusive; targets are
    the inputs one token later. Each epoch visits every sample once, in an order of seed and epoch
    alone, so a global batch does not depend on its split over replicas and micro-batches.

    Args:
        vocab_size: of the model; larger tokens are an error when met.
        loss_mask: prefix of an indexed file of equal length; 0: the token is no target.

    Raises ConfigError as ``read_index``, or if the two files differ in length.
    """

    def __init__(
        self, prefix: str | Path, vocab_size: int, loss_mask: str | Path | None = None
    ) -> None:
        self.prefix = str(prefix)
        self.vocab_size = vocab_size
        self._index = index = read_index(prefix)
        self.num_tokens = index.num_tokens
        if self.num_tokens < 2:
            raise ConfigError(f"{prefix}.bin: holds {self.num_tokens} tokens; add text")
        self._tokens = np.memmap(f"{prefix}.bin", dtype=index.dtype, mode="r")
        self._in_loss: np.ndarray | None = None
        if loss_mask is not None:
            mask = read_index(loss_mask)
            if mask.num_tokens != self.num_tokens:
                raise ConfigError(
                    f"loss_mask: {loss_mask}.bin holds {mask.num_tokens} numbers, and {prefix}.bin "
                    f"{self.num_tokens} tokens; one number is needed for each"
                )
            self._in_loss = np.memmap(f"{loss_mask}.bin", dtype=mask.dtype, mode="r")

    def samples(
        self, first: int, count: int, *, seq_length: int, seed: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and targets of samples counted since training began: int64 (count, seq_length).

        Raises ConfigError if the data is shorter than one sample, or a token is not in the model's
        vocabulary.
        """
        places = [self._place(first + row, seq_length, seed) for row in range(count)]
        rows = np.stack([self._sample(begin, seq_length) for begin in places])
        samples = torch.from_numpy(rows.astype(np.int64))
        targets = samples[:, 1:].contiguous()
        if self._in_loss is not None:
            marks = [self._in_loss[begin + 1 : begin + seq_length + 1] for begin in places]
            targets.masked_fill_(torch.from_numpy(np.stack(marks) == 0), IGNORED)
        return samples[:, :-1].contiguous(), targets

    def starts(self, first: int, count: int, *, seq_length: int, seed: int) -> torch.Tensor:
        """Start of each token's document in its sample, and the last target's: see ``Dataset``."""
        places = [self._place(first + row, seq_length, seed) for row in range(count)]
        return torch.from_numpy(
            np.stack([self._index.starts(begin, seq_length + 1) for begin in places])
        )

    def _place(self, number: int, seq_length: int, seed: int) -> int:
        """The first token of the number-th sample since the start of training."""
        samples = (self.num_tokens - 1) // seq_length
        if samples == 0:
            raise ConfigError(
                f"{self.prefix}.bin: {self.num_tokens} tokens are fewer than one sample of "
                f"seq_length {seq_length} + 1; add text, or lower model.seq_length"
            )
        epoch, position = divmod(number, samples)
        return shuffled(position, samples, seed, epoch) * seq_length

    def _sample(self, begin: int, seq_length: int) -> np.ndarray:
        """The seq_length + 1 tokens from ``begin`` on."""
        tokens = self._tokens[begin : begin + seq_length + 1]
        low, high = tokens.min(), tokens.max()
        if not (low >= 0 and high < self.vocab_size):  # NaN is neither
            raise ConfigError(
                f"{self.prefix}.bin: token {high if low >= 0 else low} is not in the model's "
                f"vocabulary of {self.vocab_size}; set model.vocab_size to the tokenizer's, "
                "rounded up to a multiple of tp"
            )
        return tokens


def shuffled(position: int, size: int, seed: int, epoch: int) -> int:
    """Image of ``position`` under a random permutation of ``range(size)``, without a table.

    A four-round Feistel network on the next power of four, repeated until the result is below
    ``size`` (cycle walking; Black and Rogaway 2002, "Ciphers with arbitrary finite domains"): at
    most four passes on average, and no memory for an epoch of 10^9 samples.
    """
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half_bits) - 1
    keys = [mix((seed << 32) ^ (epoch << 3) ^ round_) for round_ in range(4)]
    while True:
        left, right = position >> half_bits, position & mask
        for key in keys:
            left, right = right, left ^ (mix(right ^ key) & mask)
        position = (left << half_bits) | right
        if position < size:
            return position
