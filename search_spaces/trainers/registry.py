"""Trainers by name: meshtune's own, any command, and those of other distributions.

A distribution adds its own by an entry point, and a space names it with ``trainer: {use: mine}``::

    [project.entry-points."meshtune.trainers"]
    mine = "my_package.my_module:MyTrainer"
"""

from __future__ import annotations

from collections.abc import Callable

from foundation.registry import Registry, RegistryError
from search_spaces.language.trainer_schema import TrainerSpec
from search_spaces.trainers.trainer import Trainer

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
