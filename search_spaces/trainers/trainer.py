"""The interface of trainers, and trainers by name: meshtune's own, any command, installed ones.

A distribution adds its own by an entry point, and a space names it with ``trainer: {use: mine}``::

    [project.entry-points."meshtune.trainers"]
    mine = "my_package.my_module:MyTrainer"
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from foundation.registry import Registry, RegistryError
from foundation.values import Scalar
from search_spaces.frameworks import Framework, StatedHabits
from search_spaces.known import framework_named
from search_spaces.language.trainer_schema import TrainerSpec
from search_spaces.trainers import templates
from slurm.logs.patterns import LogFormat
from trainer.plan.model import ModelConfig

DEFAULT_FRAMEWORK = "megatron-lm"  # most people's own trainers derive from it


@dataclass(frozen=True)
class TrialFacts:
    """Facts of one trial, from which its trainer makes command and files."""

    config: Mapping[str, Any]  # the canonical configuration
    # parameters, model, cluster and what follows from them (``dp``, ``world_size``, ...)
    facts: Mapping[str, Any]
    directory: Path  # the trial's folder, in which its ranks start
    warmup_steps: int  # to train before the measured ones
    measured_steps: int
    model: ModelConfig | None = None  # None where the space names none
    data: str | None = None  # tokens for the built-in trainer; None for another
    # torch's name of the device that a rank drives; None where the cluster states none
    device: str | None = None

    @property
    def values(self) -> dict[str, Scalar]:
        """Names that templates can use."""
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

    ``spec`` is the space's ``trainer`` section; ``spec.options`` are a trainer's own.

    Raises ValueError for wrong options; the message says what is accepted.
    """

    framework: str | StatedHabits = DEFAULT_FRAMEWORK
    """Framework whose habits the cost model assumes, by its name or with those that are certain."""

    def __init__(self, spec: TrainerSpec) -> None:
        self.spec = spec

    @abstractmethod
    def command(self, trial: TrialFacts) -> tuple[str, ...]:
        """The argv of every rank; pure."""

    def config_file(self, trial: TrialFacts) -> dict[str, Any]:
        """Content of the trial's ``config.json``; default its configuration."""
        return dict(trial.config)

    def files(self, trial: TrialFacts) -> Mapping[str, str]:
        """Text of further files in the trial's folder, by name."""
        return {}

    def environment(self, trial: TrialFacts) -> dict[str, str]:
        """Environment variables of every rank."""
        values = trial.values
        return {name: templates.filled(text, values) for name, text in self.spec.env.items()}

    @cached_property
    def habits(self) -> Framework:
        return framework_named(self.framework)

    @property
    def reads(self) -> frozenset[str] | None:
        """Parameters, facts and ``measured_steps`` that its command depends on; None: perhaps all.

        ``check`` reports a parameter with several values that is not among them.
        """
        return None

    @property
    def log(self) -> LogFormat:
        """Format of its logs, from which metrics are read where it writes no result."""
        return LogFormat()

    @property
    def preload(self) -> Sequence[str]:
        """Modules that a process keeps imported from trial to trial; none: no process is kept."""
        return self.spec.preload or ()

    @property
    def axes(self) -> Sequence[str]:
        """Parameters that are further parallel axes, innermost first, between tp and dp."""
        return self.spec.axes

    @property
    def constraints(self) -> Sequence[str]:
        """Constraints on every configuration, in the language of spaces: ``mbs <= 8``."""
        return ()


TRAINERS: Registry[Callable[[TrainerSpec], Trainer]] = Registry(
    "trainer",
    "meshtune.trainers",
    {
        "meshtune": "search_spaces.trainers.meshtune:MeshtuneTrainer",
        "command": "search_spaces.trainers.command:CommandTrainer",
    },
)


def make_trainer(spec: TrainerSpec) -> Trainer:
    """The trainer that a space names.

    Raises:
        RegistryError: if the name is unknown, or what is installed under it is no trainer.
        ValueError: by the trainer, for wrong options.
    """
    name = spec.use or ("meshtune" if spec.builtin is not None else "command")
    trainer = TRAINERS.get(name)(spec)
    if not isinstance(trainer, Trainer):
        raise RegistryError(
            f"trainer {name!r} is of type {type(trainer).__name__}; it must be a Trainer"
        )
    return trainer
