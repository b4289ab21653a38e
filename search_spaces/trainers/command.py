"""A trainer of the user's own, by its command: ``trainer: {command: [...]}``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from search_spaces.language.schema import TrainerSpec
from search_spaces.trainers.trainer import DEFAULT_FRAMEWORK, Trainer, TrialFacts
from slurm import LogFormat

PLACEHOLDER = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")
TRIAL_PLACEHOLDERS = ("trial_dir", "warmup_steps", "measured_steps")


class CommandTrainer(Trainer):
    """An argv in which ``{tp}`` and the like stand for a trial's values."""

    def __init__(self, spec: TrainerSpec) -> None:
        super().__init__(spec)
        self.framework = spec.framework or DEFAULT_FRAMEWORK

    def command(self, trial: TrialFacts) -> tuple[str, ...]:
        """``{{x}}`` is kept as ``{x}``; true and false are written so."""
        values = {
            **trial.facts,
            "trial_dir": str(trial.directory),
            "warmup_steps": trial.warmup_steps,
            "measured_steps": trial.measured_steps,
        }

        def fill(match: re.Match[str]) -> str:
            if match[1]:
                return "{" + match[1] + "}"
            value = values[match[2]]
            return str(value).lower() if isinstance(value, bool) else str(value)

        return tuple(PLACEHOLDER.sub(fill, argument) for argument in self.spec.command or ())

    @property
    def log(self) -> LogFormat:
        return self.spec.result.log_format() if self.spec.result else LogFormat()

    @property
    def axes(self) -> Sequence[str]:
        return self.spec.axes
