"""Requirements of trainers as rules of a space: of DeepSpeed, and of the user's own on experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from search_spaces.language.trainer_schema import BuiltinTrainer
from search_spaces.parameters import Parameter
from search_spaces.rules.rule import Rule, expressed
from trainer import deepspeed_requirements
from trainer.plan.model import ModelConfig
from trainer.plan.rules.declared import refused_settings
from trainer.plan.rules.expression import ValueType, parse


def of_deepspeed(trainer: BuiltinTrainer, types: Mapping[str, ValueType]) -> list[Rule]:
    """DeepSpeed's limits (``trainer.deepspeed.rules``), where ``engine`` is searched.

    A device that is not said counts as CUDA.
    """
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


def of_experts(
    model: ModelConfig | None,
    parameters: Mapping[str, Parameter],
    axes: Sequence[str],
    types: Mapping[str, ValueType],
) -> list[Rule]:
    """Rules for a space that searches ``ep`` for a model with experts; else none.

    As in Megatron, ``ep`` ranks are taken from those of data and context parallelism, so that it is
    no factor of the world size. An ``ep`` among the trainer's own ``axes`` is another.
    """
    if model is None or model.mixture is None or "ep" not in parameters or "ep" in axes:
        return []
    replicas = " * ".join(["dp", *(name for name in axes if name == "cp")])
    if "etp" in parameters:
        holders = f"(tp * {replicas}) % (etp * ep) == 0"
    else:
        holders = f"({replicas}) % ep == 0"
    texts = {"experts_by_ep": "num_experts % ep == 0", "replicas_by_ep": holders}
    return [expressed(name, parse(text, types), required=True) for name, text in texts.items()]
