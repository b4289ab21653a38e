"""DeepSpeed's limits as rules of a space; see ``trainer.deepspeed.rules``."""

from __future__ import annotations

from collections.abc import Mapping

from search_spaces.language.trainer_schema import BuiltinTrainer
from search_spaces.rules.rule import Rule, expressed
from trainer import deepspeed_requirements
from trainer.plan.rules.declared import refused_settings
from trainer.plan.rules.expression import ValueType, parse


def rules(trainer: BuiltinTrainer, types: Mapping[str, ValueType]) -> list[Rule]:
    """The rules for a space that searches ``engine``; a device that is not said counts as CUDA."""
    texts: dict[str, list[str]] = {}
    for requirement in deepspeed_requirements("cpu" if trainer.device == "cpu" else "cuda"):
        texts.setdefault(requirement.name, []).append(requirement.text)
    # Settings are no names that a rule could read.
    texts |= {f"deepspeed_{name}": ["false"] for name in refused_settings(trainer, "deepspeed")}
    return [
        expressed(name, parse(f"engine != 'deepspeed' or {_all(parts)}", types))
        for name, parts in texts.items()
    ]


def _all(texts: list[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    return " and ".join(f"({text})" if " or " in text else text for text in texts)
