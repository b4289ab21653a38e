"""One model trained on texts that are repeated, and how much of them it recites."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.memorization.decoding import greedy
from trainer.data.prepare import python_source_files
from trainer.model.transformer import Stage
from trainer.plan.config import TrainConfig
from trainer.runtime.device import Device
from trainer.train import Trainer

RECITED = 50  # tokens at the end of a passage that the model has to write
LENGTH = 128  # of a passage, the first token not counted
BATCH = 8
MODEL = {"num_layers": 4, "hidden_size": 128, "num_heads": 4, "vocab_size": 264}
PEAK_RATE, LAST_RATE = 2e-3, 2e-4
GOLDFISH = {"k": 2, "h": 13}
"""Settings of Singh et al. 2024, section VIII-D."""


@dataclass(frozen=True)
class Study:
    """Amount of training.

    Attributes:
        repetitions: of each bucket; the one of 0 is the control.
        passages: of a bucket.
        warm_up_steps: on other text, before the buckets.
        seed: of passages, their order and first weights.
    """

    repetitions: Sequence[int]
    passages: int
    warm_up_steps: int
    seed: int


@dataclass(frozen=True)
class Recited:
    """Recitation of a bucket by a model.

    Attributes:
        exact: share of passages whose last tokens are all right.
        tokens: share of these tokens that are right.
    """

    exact: float
    tokens: float


class Passages:
    """A dataset: the rows of each step, in a given order."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def samples(self, first: int, count: int, **shape: Any) -> tuple[Tensor, Tensor]:
        rows = self.rows[first : first + count]
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def passages(seed: int, count: int) -> tuple[Tensor, Iterator[Tensor]]:
    """Passages of Python's standard library, as bytes.

    Returns:
        So many, each of another file, (count, tokens); and more and more of all other files.
    """
    choice = random.Random(seed)
    files = [path for path in python_source_files() if path.stat().st_size > 4 * LENGTH]
    choice.shuffle(files)

    def one(path: Path) -> Tensor:
        content = path.read_bytes()
        begin = choice.randrange(len(content) - LENGTH)
        return torch.tensor([*content[begin : begin + LENGTH + 1]])

    chosen = torch.stack([one(path) for path in files[:count]])
    return chosen, (one(path) for path in itertools.cycle(files[count:]))


def recite(study: Study, goldfish: bool) -> dict[int, Recited]:
    """Train a model from scratch, and let it continue the beginning of each passage.

    First on other text while the learning rate rises, then on the buckets, as often as each is
    repeated and shuffled, while it falls (Singh et al. 2024, section VIII-B).

    Returns:
        By repetitions of the bucket.
    """
    number = study.passages
    chosen, more = passages(study.seed, number * len(study.repetitions))
    buckets = dict(zip(study.repetitions, chosen.split(number), strict=True))
    other = torch.stack([next(more) for _ in range(study.warm_up_steps * BATCH)])
    taught = torch.cat([bucket.repeat(n, 1) for n, bucket in buckets.items()])
    order = torch.randperm(len(taught), generator=torch.Generator().manual_seed(study.seed))
    rows = torch.cat((other, taught[order]))
    with tempfile.TemporaryDirectory(prefix="memorization-") as folder:
        store = dist.FileStore(str(Path(folder) / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            stage = _trained(study, rows, goldfish)
        finally:
            dist.destroy_process_group()
    return {n: recited(stage, bucket) for n, bucket in buckets.items()}


def _trained(study: Study, rows: Tensor, goldfish: bool) -> Stage:
    steps = len(rows) // BATCH
    config = TrainConfig.parse(
        {
            "model": {**MODEL, "seq_length": LENGTH},
            "data": "passages",
            "mbs": BATCH,
            "precision": "fp32",
            "device": "cpu",
            "seed": study.seed,
            "optimizer": {"lr": PEAK_RATE},
            "lr_scheduler": schedule(study.warm_up_steps, steps),
            "measured_steps": steps,
            "goldfish": GOLDFISH if goldfish else None,
        }
    )
    training = Trainer(config, Device("cpu"))
    dataset = Passages(rows)
    for step in range(steps):
        training.step(step, dataset)
    (stage,) = training.stages
    return stage


def schedule(warm_up: int, steps: int) -> dict[str, float]:
    """The learning rate: a linear warm-up to the peak, then a linear decay."""
    least = LAST_RATE / PEAK_RATE
    return {"warmup_steps": warm_up, "total_steps": steps, "min_lr_factor": least}


def recited(stage: Stage, bucket: Tensor) -> Recited:
    """Recite the last tokens of passages, given all tokens before them."""
    found = greedy(stage, bucket[:, :-RECITED], RECITED)
    right = found == bucket[:, -RECITED:]
    return Recited(right.all(1).float().mean().item(), right.float().mean().item())
