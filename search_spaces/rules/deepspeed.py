"""What DeepSpeed cannot train, as rules of a space; see ``trainer.deepspeed.rules``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from search_spaces.language.trainer_schema import BuiltinTrainer
from search_spaces.rules.rule import Rule, expressed
from trainer import deepspeed_requirements
from trainer.plan.rules.expression import ValueType, parse


def rules(trainer: BuiltinTrainer, types: Mapping[str, ValueType]) -> list[Rule]:
    """The rules for a space that searches ``engine``; a device that is not said counts as CUDA."""
    asked = deepspeed_requirements("cpu" if trainer.device == "cpu" else "cuda")
    texts = {
        name: [requirement.text for requirement in same]
        for name, same in groupby(asked, key=lambda requirement: requirement.name)
    }
    # Settings of all trials, not names of the space.
    refused = ("goldfish", "documents", "loss_mask", "validation")
    for name in (*refused, "save", "load", "initial_load_path"):
        if getattr(trainer, name) is not None:
            texts[f"deepspeed_{name}"] = ["false"]
    if trainer.time_communication:
        texts["deepspeed_time_communication"] = ["false"]
    else:
        del texts["deepspeed_time_communication"]
    return [
        expressed(name, parse(f"engine != 'deepspeed' or {_all(parts)}", types))
        for name, parts in texts.items()
    ]


def _all(texts: list[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    return " and ".join(f"({text})" if " or " in text else text for text in texts)
