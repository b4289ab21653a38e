"""Saves, loads and breaks checkpoints in sets of ranks; a program, started by the tests.

Reads from each line of standard input a JSON list of phases, one after another, each a list of
jobs as ``rank_worker`` takes them, and ends its answers with ``{"code"}``. A job's option
``action`` names a function below. A phase whose ranks are killed may have no answers.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import rank_worker
import torch
from rank_worker import RandomTokens

import trainer.loop
import trainer.train
from trainer.checkpoint import chunks
from trainer.checkpoint.checkpoints import CheckpointError, Checkpoints, restore
from trainer.checkpoint.chunks import SaveChunks
from trainer.model.precision import LossScaler
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError
from trainer.runtime.device import Device
from trainer.train import Trainer

CHUNKS_BEFORE_EVENT = 5


class ReadTokens(RandomTokens):
    """Keeps the numbers of the samples that were read."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self.numbers: list[int] = []

    def samples(self, first: int, count: int, **shape: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.numbers += range(first, first + count)
        return super().samples(first, count, **shape)


class Training:
    """A trainer whose steps are asked for one by one."""

    def __init__(self, config: TrainConfig) -> None:
        self.trainer = Trainer(config, Device.of_this_rank("cpu"))
        self.checkpoints = Checkpoints(config)
        self.data = ReadTokens(config.model.vocab_size)

    def steps(self, first: int, last: int) -> list[float]:
        return [self.trainer.step(number, self.data).loss for number in range(first, last)]

    def facts(self) -> dict[str, Any]:
        scaler, adamw = self.trainer.scaler, self.trainer.optimizer.adamw
        states = adamw.state.values() if adamw else ()
        return {
            "scale": scaler.scale,
            "good_steps": scaler.good_steps,
            "updates": sorted({state["step"].item() for state in states}),
        }


def train(config: TrainConfig, options: dict[str, Any]) -> dict[str, Any]:
    """What the trainer itself does."""
    lines: list[str] = []
    try:
        result = trainer.loop.train(config, RandomTokens(config.model.vocab_size), lines.append)
    except (ConfigError, CheckpointError) as error:
        return {"error": type(error).__name__, "says": str(error)}
    return {"losses": result["losses"], "progress": lines}


def go_on(config: TrainConfig, options: dict[str, Any]) -> dict[str, Any]:
    """Load, save the very same (if asked to), then train."""
    training = Training(config)
    first = training.trainer.resume()
    facts = training.facts()
    if config.save:
        training.checkpoints.save(training.trainer, first)
    losses = training.steps(first, first + config.steps)
    return {"first": first, "losses": losses, "read": training.data.numbers, **facts}


def turn_back(config: TrainConfig, options: dict[str, Any]) -> dict[str, Any]:
    """Load an older checkpoint into a trainer that has gone on."""
    training = Training(config)
    training.checkpoints.load(training.trainer)
    training.steps(0, 2)
    path = training.checkpoints.save(training.trainer, 2)
    onwards = training.steps(2, 5)
    assert restore(training.trainer, path) == 2
    return {"onwards": onwards, "again": training.steps(2, 5)}


def full_disk(config: TrainConfig, options: dict[str, Any]) -> dict[str, Any]:
    """One rank's files cannot grow as far as the second checkpoint needs."""
    training = Training(config)
    training.checkpoints.load(training.trainer)
    training.steps(0, 1)
    training.checkpoints.save(training.trainer, 1)
    training.steps(1, 2)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if training.trainer.mesh.states.rank == options["rank"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (options["bytes"], limits[1]))
    said = ""
    try:
        training.checkpoints.save(training.trainer, 2)
    except CheckpointError as error:
        said = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert config.save is not None
    left = sorted(path.name for path in Path(config.save).iterdir())
    training.checkpoints.save(training.trainer, 2)
    return {"says": said, "left": left}


def killed(config: TrainConfig, options: dict[str, Any]) -> dict[str, Any]:
    """Save three times; one rank is killed as it is about to do a certain thing in the last save.

    Options:
        rank: which.
        event: the number, from 1, of what it does in the folder: files it opens or renames, the
            ``CHUNKS_BEFORE_EVENT``-th chunk it writes, folders it makes or removes.
    """
    training = Training(config)
    checkpoints = training.checkpoints
    checkpoints.load(training.trainer)
    for step in (1, 2, 3):
        training.steps(step - 1, step)
        if step == 3:
            events = arm(training, options)
        checkpoints.save(training.trainer, step)
    return {"events": events}


def arm(training: Training, options: dict[str, Any]) -> list[str]:
    events: list[str] = []
    if training.trainer.mesh.states.rank != options["rank"]:
        return events
    folder = str(training.checkpoints.folder)

    def count(event: str) -> None:
        events.append(event)
        if len(events) == options["event"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        path = str(arguments[0]) if arguments else ""
        here = event.startswith(("open", "os.")) and path.startswith(folder)
        if here or event == "os.remove":  # the latter may name a file beside an open folder
            count(event)

    def look(self: SaveChunks, index: Any, number: list[int] = [0]) -> Any:  # noqa: B006
        number[0] += 1
        if number[0] == CHUNKS_BEFORE_EVENT:
            count("chunk")
        return lookup(self, index)

    lookup = SaveChunks.lookup_object
    SaveChunks.lookup_object = look
    sys.addaudithook(hook)
    return events


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    options = job["options"]
    trainer.train.LossScaler = functools.partial(
        LossScaler, initial=options.get("initial_scale", 2.0**16)
    )
    chunks.CHUNK_ELEMENTS = options.get("chunk_elements", 1 << 20)
    action = {f.__name__: f for f in (train, go_on, turn_back, full_disk, killed)}
    return action[options["action"]](TrainConfig.parse(job["config"]), options)


def main() -> None:
    rank_worker.run_job = run_job
    for line in sys.stdin:
        failed = 0
        for jobs in json.loads(line):
            well = rank_worker.run_all(jobs)
            if not any(job["options"]["action"] == "killed" for job in jobs):
                failed = failed or int(not well)
        print(json.dumps({"code": failed}), flush=True)


if __name__ == "__main__":
    main()
