"""meshtune's own trainer: ``trainer: {builtin: {...}}``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foundation.python import module_argv
from search_spaces.parameters import SEARCHABLE
from search_spaces.trainers.trainer import Trainer, TrialFacts


class MeshtuneTrainer(Trainer):
    """The built-in trainer; ``trainer.plan.config`` reads its ``config.json``."""

    framework = "meshtune"

    @property
    def preload(self) -> Sequence[str]:
        return ("trainer.__main__",) if self.spec.preload is None else self.spec.preload

    def command(self, trial: TrialFacts) -> tuple[str, ...]:
        return module_argv("trainer", str(trial.directory / "config.json"))

    def config_file(self, trial: TrialFacts) -> dict[str, Any]:
        """Content that ``TrainConfig.parse`` accepts.

        Where the space leaves the device open, it is the cluster's: ranks that find no GPU where
        the cluster has them fail, instead of training on the CPU.

        Raises ValueError if no data is given.
        """
        assert self.spec.builtin is not None and trial.model is not None  # the schema requires both
        if trial.data is None:
            raise ValueError("the built-in trainer needs tokens")
        searched = {name: value for name, value in trial.config.items() if name in SEARCHABLE}
        own = self.spec.builtin.model_dump(exclude_none=True)
        # Ranks start in the trial's folder.
        for part, key in (
            (own, "loss_mask"),
            (own, "initial_load_path"),
            (own.get("validation", {}), "data"),
        ):
            if key in part:
                part[key] = str(Path(part[key]).absolute())
        if own.get("device", "auto") == "auto" and trial.device is not None:
            own["device"] = trial.device
        return {
            **own,
            **searched,
            "ranks_per_node": trial.facts["gpus_per_node"],
            "ranks_per_pair": trial.facts["ranks_per_pair"],
            "model": trial.model.model_dump(exclude_none=True),
            "data": trial.data,
            "warmup_steps": trial.warmup_steps,
            "measured_steps": trial.measured_steps,
        }
