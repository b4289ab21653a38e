"""What a search needs to know of a trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_spaces.language.fields import Scalar
from search_spaces.language.trainer_schema import TrainerSpec
from search_spaces.trainers import templates
from slurm.logs.patterns import LogFormat
from trainer.plan.model import ModelConfig

DEFAULT_FRAMEWORK = "megatron-lm"  # what most trainers of people's own derive from


@dataclass(frozen=True)
class TrialFacts:
    """One trial, as its trainer is told.

    Attributes:
        config: canonical.
        facts: parameters, model, cluster and what follows from them (``dp``, ``world_size``, ...).
        directory: of the trial; its ranks are started there.
        warmup_steps, measured_steps: to train.
        model: that is trained; None where the space names none.
        data: the built-in trainer's tokens; None for another.
        device: of the cluster's ranks, in torch's word; None where the cluster does not say.
    """

    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    directory: Path
    warmup_steps: int
    measured_steps: int
    model: ModelConfig | None = None
    data: str | None = None
    device: str | None = None

    @property
    def values(self) -> dict[str, Scalar]:
        """What templates can use."""
        return {
            **self.facts,
            "trial_dir": str(self.directory),
            "warmup_steps": self.warmup_steps,
            "measured_steps": self.measured_steps,
        }


class Trainer(ABC):
    """A program that trains one configuration.

    Its metrics are found in ``result.json`` in the trial's folder, in a line ``MESHTUNE_RESULT
    {json}`` of its standard output, or in its logs by ``log``.

    Args:
        spec: what the space says under ``trainer``; ``spec.options`` are a trainer's own.

    Raises:
        ValueError: for wrong options; the message says what is accepted.
    """

    framework: str = DEFAULT_FRAMEWORK
    """By whose habits the cost model prices it."""

    def __init__(self, spec: TrainerSpec) -> None:
        self.spec = spec

    @abstractmethod
    def command(self, trial: TrialFacts) -> tuple[str, ...]:
        """The argv of every rank; pure."""

    def config_file(self, trial: TrialFacts) -> dict[str, Any]:
        """The content of the trial's ``config.json``; default its configuration."""
        return dict(trial.config)

    def files(self, trial: TrialFacts) -> Mapping[str, str]:
        """Further files of the trial's folder, their text by name."""
        return {}

    def environment(self, trial: TrialFacts) -> dict[str, str]:
        """Variables of every rank."""
        values = trial.values
        return {name: templates.filled(text, values) for name, text in self.spec.env.items()}

    @property
    def reads(self) -> frozenset[str] | None:
        """Parameters, facts and ``measured_steps`` that its command depends on; None: perhaps all.

        Where a parameter has several values and no part in them, ``check`` says so.
        """
        return None

    @property
    def log(self) -> LogFormat:
        """How its logs tell its metrics, where it writes no result."""
        return LogFormat()

    @property
    def preload(self) -> Sequence[str]:
        """Modules that processes which outlive a trial may hold for the next one; none: never."""
        return self.spec.preload or ()

    @property
    def axes(self) -> Sequence[str]:
        """Parameters that are further parallel axes, innermost first, between tp and dp."""
        return ()

    @property
    def constraints(self) -> Sequence[str]:
        """What every configuration has to satisfy, in the language of spaces: ``mbs <= 8``."""
        return ()
