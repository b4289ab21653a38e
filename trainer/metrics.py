"""Metrics of single steps while a run trains: JSON lines, TensorBoard, Weights & Biases."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from foundation.files import finite
from foundation.writing import write_atomically
from trainer.plan.limits import ConfigError
from trainer.plan.sections import Metrics

METRICS_NAME = "metrics.jsonl"
Figures = Mapping[str, float | int | None]


class MetricsWriter:
    """Writes metrics to files and services; used on rank 0 only.

    Lines after step ``first``, from a run that died after its last checkpoint, are removed.

    Raises:
        ConfigError: if a package is not installed, or the file cannot be written.
    """

    def __init__(
        self, metrics: Metrics, folder: Path, first: int, config: Mapping[str, Any]
    ) -> None:
        self.log_freq = metrics.log_freq
        self.path = folder / METRICS_NAME
        try:
            kept = _lines_until(self.path, first)
            write_atomically(self.path, "".join(kept))
            self.file = self.path.open("a")
        except OSError as error:
            raise ConfigError(f"metrics: {self.path}: {error.strerror}") from error
        self.others: list[Callable[[int, Mapping[str, float]], None]] = []
        self.ends: list[Callable[[], None]] = [self.file.close]
        if metrics.enable_tensorboard:
            module = _package("torch.utils.tensorboard", "tensorboard")
            board = module.SummaryWriter(str(folder / "tb"), purge_step=first + 1)

            def scalars(step: int, figures: Mapping[str, float]) -> None:
                for name, value in figures.items():
                    board.add_scalar(name, value, step)

            self.others.append(scalars)
            self.ends.append(board.close)
        if metrics.enable_wandb:
            run = _package("wandb", "wandb").init(config=dict(config), dir=str(folder))
            self.others.append(lambda step, figures: run.log(dict(figures), step=step))
            self.ends.append(run.finish)

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

    def close(self) -> None:
        for end in self.ends:
            end()


def _lines_until(path: Path, step: int) -> list[str]:
    """Lines of the resumed run up to this step."""
    if step == 0 or not path.exists():
        return []
    kept = []
    for line in path.read_text().splitlines():
        try:
            earlier = json.loads(line)["step"] <= step
        except (ValueError, TypeError, KeyError):  # a line that was torn
            continue
        if earlier:
            kept.append(line + "\n")
    return kept


def _package(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"metrics.enable_{name}: the package {name} is not installed; pip install {name}, or "
            f"set enable_{name}: false"
        ) from error
