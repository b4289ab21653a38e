"""Checkpoints: a run's state in a folder that is complete or not there at all.

``step-00000012`` holds the state after 12 steps: float32 weights and moments as torch's DCP writes
them, of whole parameters, so that any layout can go on from any other's; and ``training.json``
with all that is the same on every rank, and ``checksums.json`` of all other files. It gets its
name when everything is on disk; until then, and again while it is removed, it ends in
``.partial``, which nobody reads.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException, FileSystemWriter

from trainer.checkpoint.chunks import Chunk, LoadChunks, SaveChunks, chunks
from trainer.checkpoint.integrity import (
    CHECKSUMS_NAME,
    CheckpointError,
    SafeReader,
    checksum,
    read_checksums,
    verify,
)
from trainer.checkpoint.record import RECORD_NAME, Record, check_same, identity, read_record
from trainer.config import ConfigError, TrainConfig
from trainer.model.precision import LossScaler
from trainer.model.transformer import Stage
from trainer.optimizer import Optimizer
from trainer.parallel.mesh import Mesh
from trainer.runtime.fsync import sync_folder
from trainer.runtime.phase import phase

KEEP = 2
"""Complete checkpoints that stay when a newer one is complete, that one included."""
_COMPLETE = re.compile(r"step-(\d{8,})")
_PARTIAL = ".partial"

T = TypeVar("T")


class Checkpointed(Protocol):
    """What a checkpoint saves and restores the state of; ``train.Trainer`` is one."""

    config: TrainConfig
    mesh: Mesh
    stages: list[Stage]
    optimizer: Optimizer
    scaler: LossScaler


def complete(folder: Path) -> dict[int, Path]:
    """Complete checkpoints in a folder by their finished steps, in their order."""
    found = [(_COMPLETE.fullmatch(path.name), path) for path in folder.iterdir()]
    return dict(sorted((int(match[1]), path) for match, path in found if match))


class Checkpoints:
    """Where one run saves, and where it goes on from. Every rank must call each method.

    Args:
        config: of the run.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.folder = Path(config.save) if config.save else None
        self.source = Path(config.load) if config.load else None

    def load(self, trainer: Checkpointed) -> int:
        """Go on from the latest complete checkpoint, where one is asked for.

        A run that saves where it loads from begins anew if there is none yet: the same
        configuration then both starts a run and goes on with it.

        Returns:
            Steps that are finished.

        Raises:
            ConfigError: if there is nothing to load, or it is of another model or seed, or the
                folder to save into cannot be written or holds a later step.
            CheckpointError: if it cannot be read.
        """
        path = _on_first(self._find)
        finished = 0 if path is None else restore(trainer, path)
        _on_first(lambda: self._claim(finished))
        return finished

    def _find(self) -> Path | None:
        if self.source is None:
            return None
        try:
            found = complete(self.source)
        except FileNotFoundError:
            found = {}
        except OSError as error:
            raise ConfigError(f"load: {self.source}: {error.strerror}") from error
        if not found and self.source != self.folder:
            raise ConfigError(f"load: {self.source} has no complete checkpoint (step-NNNNNNNN)")
        return found[max(found)] if found else None

    def _claim(self, finished: int) -> None:
        """See before the first step whether the last one can be saved."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            latest = max(complete(self.folder), default=0)
        except OSError as error:
            raise ConfigError(f"save: {self.folder}: {error.strerror}") from error
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise ConfigError(f"save: {self.folder} is not writable")
        if latest > finished:
            raise ConfigError(
                f"save: {self.folder} holds step {latest}, but this run begins at {finished}: "
                f"go on from there (load: {self.folder}) or save elsewhere"
            )

    def due(self, step: int, last: int) -> bool:
        """Whether to save after so many finished steps of a run that ends with ``last``."""
        interval = self.config.save_interval
        return self.folder is not None and (
            step == last or (interval is not None and step % interval == 0)
        )

    def save(self, trainer: Checkpointed, step: int) -> Path:
        """Save the state after ``step`` finished steps, then remove what is older than the last 2.

        Returns:
            The checkpoint, complete and on disk.

        Raises:
            CheckpointError: if it cannot be written; earlier ones are as before.
        """
        assert self.folder is not None
        folder, final = self.folder, self.folder / f"step-{step:08}"
        phase.name = "checkpoint"
        try:
            draft = _on_first(lambda: _begin(final))
            planner = SaveChunks(_chunks(trainer))
            dcp.save({}, storage_writer=FileSystemWriter(draft), planner=planner)
            record = _record(trainer, step)
            written = f"__{dist.get_rank()}_*.distcp"
            own = _on_each(lambda: {file.name: checksum(file) for file in draft.glob(written)})
            checksums = {name: value for rank in own for name, value in rank.items()}
            _on_first(lambda: _finish(draft, final, record, checksums))
        except (OSError, CheckpointException) as error:
            if dist.get_rank() == 0:
                _remove_partial(folder)
            raise CheckpointError(f"cannot save {final}: {_cause(error)}") from error
        return final


def restore(trainer: Checkpointed, path: Path) -> int:
    """Give a trainer the state of one complete checkpoint; returns its finished steps.

    Raises:
        ConfigError: if it is of another model or seed.
        CheckpointError: if it cannot be read.
    """
    phase.name = "checkpoint"
    try:
        checksums = _on_first(lambda: read_checksums(path))
        mine = sorted(checksums)[dist.get_rank() :: dist.get_world_size()]
        _on_each(lambda: verify(path, checksums, mine))
        record = _on_first(lambda: read_record(path))
        check_same(record, trainer.config, path)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            # Each rank reads by itself: a common plan would grow with ranks times chunks.
            dcp.load(
                {},
                storage_reader=SafeReader(path),
                planner=LoadChunks(_chunks(trainer)),
                no_dist=True,
            )
    except (OSError, CheckpointError, CheckpointException) as error:
        raise CheckpointError(
            f"cannot read {path}: {_cause(error)}; without that folder the run goes on from the "
            "checkpoint before it"
        ) from error
    adamw = trainer.optimizer.adamw
    if adamw is not None:
        for state in adamw.state.values():
            state["step"].fill_(record.updates)
    if trainer.scaler.enabled and record.loss_scale is not None:
        trainer.scaler.scale = record.loss_scale
        trainer.scaler.good_steps = record.good_steps
    # Also makes secondary copies stale: a pass may not start from weights of another time.
    trainer.optimizer.weights.publish()
    return record.step


def _chunks(trainer: Checkpointed) -> list[Chunk]:
    with torch.no_grad():
        return chunks(trainer.stages, trainer.optimizer, trainer.mesh)


def _record(trainer: Checkpointed, step: int) -> Record:
    """The first rank, which writes it, has weights in any layout."""
    scaler, adamw = trainer.scaler, trainer.optimizer.adamw
    states = adamw.state.values() if adamw is not None else ()
    return Record(
        step=step,
        updates=int(next((state["step"].item() for state in states), 0)),
        loss_scale=scaler.scale if scaler.enabled else None,
        good_steps=scaler.good_steps,
        **identity(trainer.config),
    )


def _begin(final: Path) -> Path:
    """A new folder to write into, once the room that broken attempts took is free."""
    _remove_partial(final.parent)
    draft = _partial(final)
    draft.mkdir()
    return draft


def _finish(draft: Path, final: Path, record: Record, checksums: dict[str, str]) -> None:
    """Make a checkpoint complete, whose tensors are on disk; then older ones are not needed."""
    _write_json(draft / RECORD_NAME, record.model_dump())
    others = {file.name: checksum(file) for file in draft.iterdir() if file.name not in checksums}
    _write_json(draft / CHECKSUMS_NAME, dict(sorted((checksums | others).items())))
    sync_folder(draft)
    draft.rename(final)
    sync_folder(final.parent)
    for old in list(complete(final.parent).values())[:-KEEP]:
        old.rename(_partial(old))  # never half a checkpoint under a complete one's name
    _remove_partial(final.parent)


def _write_json(path: Path, content: Any) -> None:
    with path.open("w") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _partial(final: Path) -> Path:
    return final.with_name(f"{final.name}.{uuid.uuid4().hex[:8]}{_PARTIAL}")


def _remove_partial(folder: Path) -> None:
    for path in folder.glob(f"step-*{_PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)


def _on_first(action: Callable[[], T]) -> T:
    """Every rank gets what rank 0 found, or its error."""
    found: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            found = [action()]
        except (OSError, ConfigError, CheckpointError) as error:
            found = [error]
    dist.broadcast_object_list(found)
    if isinstance(found[0], Exception):
        raise found[0]
    result: T = found[0]
    return result


def _on_each(action: Callable[[], T]) -> list[T]:
    """Every rank gets what each found, or the error of the first that had one."""
    found: list[Any] = [None] * dist.get_world_size()
    try:
        own: Any = action()
    except (OSError, CheckpointError) as error:
        own = error
    dist.all_gather_object(found, own)
    for each in found:
        if isinstance(each, Exception):
            raise each
    return found


def _cause(error: BaseException) -> str:
    """One line: what went wrong on the first rank where something did."""
    if isinstance(error, CheckpointException):
        rank, (cause, _) = min(error.failures.items())
        return f"rank {rank}: {_cause(cause)}"
    return next(iter(str(error).splitlines()), type(error).__name__)
