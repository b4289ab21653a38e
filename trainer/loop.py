"""The training loop: steps, and what happens between them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from foundation.files import finite
from foundation.writing import write_atomically
from trainer.data.batches import Dataset
from trainer.optimizer import StepReport
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError, optional
from trainer.plan.sections import Metrics
from trainer.result import rates
from trainer.runtime.device import Device, attention_backends
from trainer.train import Trainer

if TYPE_CHECKING:
    from trainer.deepspeed.engine import DeepSpeedTrainer

    Engine = Trainer | DeepSpeedTrainer

METRICS_NAME = "metrics.jsonl"
Figures = Mapping[str, float | int | None]
StepDone = Callable[[int, float, Mapping[str, float]], None]


def train(
    config: TrainConfig,
    dataset: Dataset,
    progress: Callable[[str], None],
    step_done: StepDone = lambda *_: None,
    *,
    held_out: Dataset | None = None,
    folder: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Train for ``config.steps`` steps on every rank of the default process group.

    The group's backend must be that of ``Device.of_this_rank(config.device)``.

    Args:
        progress: takes one line after every step.
        step_done: called after every step with its number, from 1 in this run, and its seconds; if
            checkpoints are saved also with ``finished_steps`` of all runs, and ``checkpoint_s``,
            the seconds for which a checkpoint stopped training after this step. Not timed.
        folder: where the first rank writes ``config.metrics``.
        stop: whether this rank was asked to stop; all stop after the step in which any was. Called
            only if there is a folder to save into.

    Returns the same on every rank, except its own ``device``, ``memory``, ``energy``,
    ``communication`` and ``kernels``. Losses are global means, norms are before clipping, and
    ``checkpoints_s`` are the seconds for which each checkpoint stopped training.

    Raises ConfigError if the configuration cannot run on so many ranks.
    """
    device = Device.of_this_rank(config.device)
    engine: Engine
    if config.engine == "deepspeed":
        from trainer.deepspeed.engine import DeepSpeedTrainer  # heavy and optional

        engine = DeepSpeedTrainer(config, device)
    else:
        engine = Trainer(config, device)
    training = _Training(config, engine, device, dataset, held_out)
    with ExitStack() as stack:
        if config.metrics is not None and folder is not None and dist.get_rank() == 0:
            settings = config.model_dump(exclude_none=True)
            writer = MetricsWriter(config.metrics, folder, training.first, settings)
            training.writer = stack.enter_context(writer)
        dist.barrier()
        training.run(progress, step_done, stop)
    return training.results()


@dataclass
class _Training:
    """The steps of one run, and their results so far."""

    config: TrainConfig
    engine: Engine
    device: Device
    dataset: Dataset
    held_out: Dataset | None
    writer: MetricsWriter | None = None
    times_s: list[float] = field(default_factory=list)
    reports: list[StepReport] = field(default_factory=list)
    validations: dict[int, float] = field(default_factory=dict)
    saves_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.first = self.engine.resume()
        self.last = self.first + self.config.steps
        self.meter = self.device.meter(dist.get_rank())

    def run(
        self, progress: Callable[[str], None], step_done: StepDone, stop: Callable[[], bool]
    ) -> None:
        """Train until the last step, a rank is asked to stop, or the run diverges.

        A diverged run saves nothing more: its checkpoint would push out those that are whole.
        """
        config, engine, last = self.config, self.engine, self.last
        for number in range(self.first, last):
            if number == self.first + config.warmup_steps:
                if engine.traffic is not None:
                    engine.traffic.totals.clear()
                self.meter.begin()
            report, time_s = self._step(number, stop() if config.save else None)
            self.meter.step()
            done = number + 1
            losses = f"loss {report.loss:.4f} norm {report.grad_norm:.3f}"
            progress(f"step {done}/{last} {losses} time {time_s:.3f} s")
            validation = config.validation
            due = validation is not None and (done % validation.freq == 0 or done == last)
            if self.held_out is not None and due and not report.diverged:
                with attention_backends(self.device.type):
                    self.validations[done] = engine.validate(self.held_out)
                progress(f"step {done}/{last} validation loss {self.validations[done]:.4f}")
            self._write(done, report, time_s)
            begin_s = self.device.clock()
            ends = done if report.stop else last
            saved = None if report.diverged else engine.save_if_due(done, ends)
            further: dict[str, float] = {"finished_steps": done} if config.save else {}
            if saved is not None:
                further["checkpoint_s"] = self.device.clock() - begin_s
                self.saves_s.append(further["checkpoint_s"])
                progress(f"{'saving' if config.async_save else 'saved'} {saved}")
            step_done(done - self.first, time_s, further)
            if report.stop or report.diverged:
                break

    def _step(self, number: int, stop: bool | None) -> tuple[StepReport, float]:
        """One step, and its seconds without those spent on other work than training."""
        begin_s = time.perf_counter()
        with attention_backends(self.device.type):
            report = self.engine.step(number, self.dataset, stop)
        time_s = self.device.clock() - begin_s - report.aside_s
        self.reports.append(report)
        self.times_s.append(time_s)
        return report, time_s

    def _write(self, done: int, report: StepReport, time_s: float) -> None:
        """Write a step's metrics, if the configuration asks for them and this is rank 0."""
        if self.writer is None:
            return
        figures = {
            "loss": report.loss,
            "grad_norm": report.grad_norm,
            "lr": self.config.lr(done - 1),
            "skipped": int(not report.done),
            "step_time_s": time_s,
            **rates(self.config, dist.get_world_size(), time_s),
        }
        if done in self.validations:
            figures["validation_loss"] = self.validations[done]
        self.writer.write(done, figures)

    def results(self) -> dict[str, Any]:
        """See ``train``; waits until everything is written."""
        reports, engine = self.reports, self.engine
        energy = self.meter.used()
        diverged, steps = reports[-1].diverged, len(reports)
        stopped = reports[-1].stop and steps < self.config.steps and not diverged
        engine.finish(stopped or diverged)
        traffic, measured = engine.traffic, max(1, steps - self.config.warmup_steps)
        return {
            "step_times_s": self.times_s,
            "losses": [report.loss for report in reports],
            "grad_norms": [report.grad_norm for report in reports],
            "skipped_steps": sum(not report.done for report in reports),
            "validation_losses": self.validations,
            "checkpoints_s": self.saves_s,
            "stopped": stopped,
            "device": self.device.facts(),
            "memory": self.device.memory(),
            "energy": energy,
            "communication": {} if traffic is None else traffic.report(measured),
            "kernels": engine.kernels,
        }


class MetricsWriter(ExitStack):
    """Writes metrics to files and services; used on rank 0 only.

    Lines after step ``first``, of a run that died after its last checkpoint, are removed.

    Raises ConfigError if a package is not installed, or the file cannot be written.
    """

    def __init__(
        self, metrics: Metrics, folder: Path, first: int, config: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.log_freq = metrics.log_freq
        self.path = folder / METRICS_NAME
        try:
            kept = _lines_until(self.path, first)
            write_atomically(self.path, "".join(kept))
            self.file = self.path.open("a")
        except OSError as error:
            raise ConfigError(f"metrics: {self.path}: {error.strerror}") from error
        self.others: list[Callable[[int, Mapping[str, float]], None]] = []
        self.enter_context(self.file)
        if metrics.enable_tensorboard:
            module = optional(
                "torch.utils.tensorboard", "metrics.enable_tensorboard", ", or set it to false"
            )
            board = module.SummaryWriter(str(folder / "tb"), purge_step=first + 1)

            def scalars(step: int, figures: Mapping[str, float]) -> None:
                for name, value in figures.items():
                    board.add_scalar(name, value, step)

            self.others.append(scalars)
            self.callback(board.close)
        if metrics.enable_wandb:
            run = optional("wandb", "metrics.enable_wandb", ", or set it to false").init(
                config=dict(config), dir=str(folder)
            )
            self.others.append(lambda step, figures: run.log(dict(figures), step=step))
            self.callback(run.finish)

    def write(self, step: int, figures: Figures) -> None:
        """Write one step, counted from 1; values that are not finite become null."""
        if step % self.log_freq and "validation_loss" not in figures:
            return
        line = {name: finite(value) for name, value in figures.items()}
        self.file.write(json.dumps({"step": step, **line}, allow_nan=False) + "\n")
        self.file.flush()
        numbers = {name: value for name, value in line.items() if value is not None}
        for write in self.others:
            write(step, numbers)


def _lines_until(path: Path, step: int) -> list[str]:
    """Lines of the resumed run up to this step."""
    if step == 0 or not path.exists():
        return []
    kept = []
    for line in path.read_text().splitlines():
        with suppress(ValueError, TypeError, KeyError):  # a line that was torn
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
    return kept
