"""A user's own trainer, started by its command: ``trainer: {command: [...]}``."""

from __future__ import annotations

import re

from search_spaces.errors import SpaceError
from search_spaces.known import log_format
from search_spaces.language.trainer_schema import Flags, TrainerSpec
from search_spaces.trainers import config_files, templates
from search_spaces.trainers.trainer import DEFAULT_FRAMEWORK, Trainer, TrialFacts
from slurm.logs.patterns import LogFormat
from trainer.plan.rules.expression import ValueType

TRIAL_PLACEHOLDERS: dict[str, ValueType] = {
    "trial_dir": "text",
    "warmup_steps": "number",
    "measured_steps": "number",
}

_BELOW = re.compile(r"\{trial_dir\}/(?=[^\s,;])")
_EXCLUDE = "exclude such configurations by a constraint"


class CommandTrainer(Trainer):
    """A command in whose arguments ``{tp}`` and the like stand for a trial's values."""

    def __init__(self, spec: TrainerSpec) -> None:
        super().__init__(spec)
        self.framework = spec.framework or DEFAULT_FRAMEWORK

    def command(self, trial: TrialFacts) -> tuple[str, ...]:
        """The filled arguments; ``{{x}}`` becomes ``{x}``, and booleans are true and false."""
        values = trial.values
        argv: list[str] = []
        try:
            for entry in self.spec.command or ():
                if isinstance(entry, str):
                    argv += templates.arguments([entry], values)
                elif templates.holds(entry.when, values):
                    argv += templates.arguments(entry.args, values)
        except ZeroDivisionError as error:
            raise SpaceError(
                f"trainer.command: {error}, in {dict(trial.config)}; {_EXCLUDE}"
            ) from None
        return tuple(argv)

    def files(self, trial: TrialFacts) -> dict[str, str]:
        values = trial.values
        try:
            return {
                name: config_files.rendered(name, file, values)
                for name, file in self.spec.files.items()
            }
        except ZeroDivisionError as error:
            raise SpaceError(
                f"trainer.files: {error}, in {dict(trial.config)}; {_EXCLUDE}"
            ) from None

    @property
    def reads(self) -> frozenset[str] | None:
        words = self.spec.words
        if any("config.json" in word or "trial.json" in word for word in words):
            return None  # such a file has all parameters
        # A path below the trial's folder is no place to read parameters from.
        found = templates.names(*(_BELOW.sub("", word) for word in words), *self.spec.env.values())
        conditions = [each.when for each in self.spec.command or () if isinstance(each, Flags)]
        for file in self.spec.files.values():
            found |= templates.names(*config_files.texts(file.settings))
            conditions += [case.when for case in file.cases]
        found = found.union(*map(templates.condition_names, conditions))
        return None if "trial_dir" in found and not self.spec.files else found

    @property
    def log(self) -> LogFormat:
        return log_format(self.spec.result, f"{self.spec.command}{self.spec.files}")
