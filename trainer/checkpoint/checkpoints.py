"""Checkpoints: a run's state in a folder that is complete or absent.

``step-00000012`` holds the state after 12 steps: float32 weights and moments of whole parameters in
torch's DCP format, readable in any layout; ``training.json`` with what all ranks share; and
``checksums.json`` of all other files. It gets its name when everything is on disk; before that, and
while it is removed, it ends in ``.partial``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import (
    CheckpointException,
    FileSystemWriter,
    SavePlan,
    SavePlanner,
)

from foundation.messages import first_line
from trainer.checkpoint import folders, integrity
from trainer.checkpoint.chunks import Chunk, LoadChunks, SaveChunks, chunks
from trainer.checkpoint.integrity import CheckpointError, checksum
from trainer.data.batches import Consumed
from trainer.model.precision import LossScaler
from trainer.model.transformer import Stage
from trainer.optimizer import Optimizer
from trainer.parallel.mesh import Mesh
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError
from trainer.runtime.phase import phase

T = TypeVar("T")
Group: TypeAlias = dist.ProcessGroup


def on_first(action: Callable[[], T], group: Group | None = None) -> T:
    """Run on rank 0; every rank gets its result, or raises its error."""
    found: list[Any] = [_outcome(action) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found, group=group)  # an answer may be long: gather none
    return _raised(found)[0]


def on_each(action: Callable[[], T], group: Group | None = None) -> list[T]:
    """Run on every rank; each gets all results, or raises the first rank's error."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, _outcome(action), group)
    return _raised(found)


class _Writer(FileSystemWriter):
    """Torch's, which names the file system's own error, such as a full disk."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:  # of the zip format, which such an error leaves unfinished
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def _outcome(action: Callable[[], T]) -> T | Exception:
    try:
        return action()
    except (OSError, ConfigError, CheckpointError) as error:
        return error


def _raised(found: list[Any]) -> list[Any]:
    for each in found:
        if isinstance(each, Exception):
            raise each
    return found


class Checkpointed(Protocol):
    """State that a checkpoint saves and restores, such as ``train.Trainer``'s."""

    config: TrainConfig
    mesh: Mesh
    stages: list[Stage]
    optimizer: Optimizer
    scaler: LossScaler
    global_batch: int  # samples of a step
    consumed: Consumed


class Checkpoints:
    """Saves and loads the checkpoints of one run. Every rank must call each method."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.folder = Path(config.save) if config.save else None
        self.source = Path(config.load) if config.load else None
        self.group: Group | None = None  # for asynchronous saves
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.pending: Future[None] | None = None

    def load(self, trainer: Checkpointed) -> int:
        """Resume from the latest complete checkpoint, if asked for; returns finished steps.

        If a run saves where it loads from, the folder may still be empty: one configuration starts
        and resumes a run. There, damaged checkpoints are set aside if an older one is whole.

        Raises ConfigError if there is nothing to load, it is of another model or seed, or the
        folder to save into cannot be written or holds a later step; CheckpointError if it cannot be
        read.
        """
        paths = on_first(self._find)
        whole = self._whole(paths) if self.source == self.folder else None
        path = whole or next(iter(paths), None)
        finished = 0 if path is None else restore(trainer, path, verified=whole is not None)
        on_first(lambda: self._claim(finished))
        return finished

    def _whole(self, paths: list[Path]) -> Path | None:
        """The first undamaged checkpoint, after setting aside those before it; None if there is
        none, or one cannot be read."""
        damage: dict[Path, str] = {}
        for path in paths:
            try:
                _verify(path)
            except OSError:
                return None
            except CheckpointError as error:
                damage[path] = _cause(error)
                continue
            for damaged, why in damage.items():
                aside = on_first(partial(folders.set_aside, damaged))
                if dist.get_rank() == 0:
                    said = f"warning: {damaged}: {why}; set aside as {aside.name}"
                    print(said, file=sys.stderr, flush=True)
            return path
        return None

    def _find(self) -> list[Path]:
        """Complete checkpoints to resume from, the latest first."""
        if self.source is None:
            return []
        try:
            found = folders.complete(self.source)
        except FileNotFoundError:
            found = {}
        except OSError as error:
            raise ConfigError(f"load: {self.source}: {error.strerror}") from error
        if not found and self.source != self.folder:
            where = self.source.absolute()
            raise ConfigError(f"load: {where} has no complete checkpoint (step-NNNNNNNN)")
        return [*found.values()][::-1]

    def _claim(self, finished: int) -> None:
        """Check before the first step that the last one can be saved."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            latest = max(folders.complete(self.folder), default=0)
        except OSError as error:
            raise ConfigError(f"save: {self.folder}: {error.strerror}") from error
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise ConfigError(f"save: {self.folder} is not writable")
        if latest > finished:
            raise ConfigError(
                f"save: {self.folder} holds step {latest}, but this run begins at {finished}: "
                f"go on from there (load: {self.folder}) or save elsewhere"
            )

    def save(self, trainer: Checkpointed, step: int) -> Path:
        """Save the state after ``step`` steps, keep the latest checkpoints; returns the folder.

        With ``async_save`` a copy is written while training goes on; see ``wait``.

        Raises CheckpointError if this one, or the one before it, cannot be written; earlier ones
        stay.
        """
        assert self.folder is not None
        self.wait()
        final = self.folder / f"step-{step:08}"
        phase.name = "checkpoint"
        held, record = _chunks(trainer), _record(trainer, step)
        with self._failing(final):
            draft = on_first(lambda: folders.begin(final))
            writer = _Writer(draft)
            if not self.config.async_save:
                dcp.save({}, storage_writer=writer, planner=SaveChunks(held))
                self._conclude(draft, final, record)
                return final
            if self.group is None:
                timeout = timedelta(seconds=self.config.collective_timeout_s)
                self.group = dist.new_group(backend="gloo", timeout=timeout)
            copies = [c._replace(data=c.data.to("cpu", copy=True)) for c in held if c.writes]
            written = dcp.async_save(
                {}, storage_writer=writer, planner=SaveChunks(copies), process_group=self.group
            )
            self.pending = self.thread.submit(self._complete, written, draft, final, record)
        return final

    def wait(self) -> None:
        """Wait until no checkpoint is being written; raises what writing raised."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            pending.result()

    def _complete(
        self, written: Future[Any], draft: Path, final: Path, record: folders.Record
    ) -> None:
        """Finish a checkpoint once torch has written it; runs in a thread."""
        with self._failing(final):
            written.result()
            self._conclude(draft, final, record, self.group)

    def _conclude(
        self, draft: Path, final: Path, record: folders.Record, group: Group | None = None
    ) -> None:
        """Write checksums and rename the checkpoint, once every rank has written its part."""
        written = f"__{dist.get_rank()}_*.distcp"
        own = on_each(lambda: {file.name: checksum(file) for file in draft.glob(written)}, group)
        checksums = {name: value for rank in own for name, value in rank.items()}
        keep = self.config.keep_latest_k
        on_first(lambda: folders.finish(draft, final, record, checksums, keep), group)

    @contextlib.contextmanager
    def _failing(self, final: Path) -> Iterator[None]:
        try:
            yield
        except (OSError, CheckpointException) as error:
            if dist.get_rank() == 0:
                folders.remove_partial(final.parent)
            raise CheckpointError(f"cannot save {final}: {_cause(error)}") from error


def _verify(path: Path) -> None:
    """Check that a checkpoint's files are unchanged; every rank raises the same error."""
    checksums = on_first(lambda: integrity.read_checksums(path))
    mine = sorted(checksums)[dist.get_rank() :: dist.get_world_size()]
    on_each(lambda: integrity.verify(path, checksums, mine))


def restore(trainer: Checkpointed, path: Path, verified: bool = False) -> int:
    """Load one complete checkpoint into a trainer; returns its finished steps.

    Its files are checked first unless they are ``verified``. Raises ConfigError if it is of another
    model or seed, CheckpointError if it cannot be read.
    """
    phase.name = "checkpoint"
    try:
        if not verified:
            _verify(path)
        record = on_first(lambda: folders.read_record(path))
        folders.check_same(record, trainer.config, path)
        planner = LoadChunks(_chunks(trainer))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            # Each rank reads by itself: a common plan would grow with ranks times chunks.
            dcp.load({}, storage_reader=integrity.SafeReader(path), planner=planner, no_dist=True)
        planner.fill_copies()
    except (OSError, CheckpointError, CheckpointException) as error:
        raise CheckpointError(
            f"cannot read {path}: {_cause(error)}; without that folder the run goes on from the "
            "checkpoint before it"
        ) from error
    read = record.step * trainer.global_batch if record.samples is None else record.samples
    trainer.consumed = Consumed(record.step, read)
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
        return list(chunks(trainer.stages, trainer.optimizer, trainer.mesh))


def _record(trainer: Checkpointed, step: int) -> folders.Record:
    """Content of ``training.json``; rank 0 writes it, and has weights in every layout."""
    scaler, adamw = trainer.scaler, trainer.optimizer.adamw
    states = adamw.state.values() if adamw is not None else ()
    return folders.Record(
        step=step,
        samples=trainer.consumed.before(step, trainer.global_batch),
        updates=int(next((state["step"].item() for state in states), 0)),
        loss_scale=scaler.scale if scaler.enabled else None,
        good_steps=scaler.good_steps,
        **folders.identity(trainer.config),
    )


def _cause(error: BaseException) -> str:
    """One line: the error of the first rank that failed."""
    if isinstance(error, CheckpointException):
        rank, (cause, _) = min(error.failures.items())
        return f"rank {rank}: {_cause(cause)}"
    return first_line(error)
