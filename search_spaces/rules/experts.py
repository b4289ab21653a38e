"""Requirements of expert parallelism of a trainer of the user's own, as rules of a space.

As in Megatron, ``ep`` ranks are taken from those of data and context parallelism, so that ``ep`` is
no factor of the world size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from search_spaces.parameters import Parameter
from search_spaces.rules.rule import Rule, expressed
from trainer.plan.model import ModelConfig
from trainer.plan.rules.expression import ValueType, parse


def rules(
    model: ModelConfig | None,
    parameters: Mapping[str, Parameter],
    axes: Sequence[str],
    types: Mapping[str, ValueType],
) -> list[Rule]:
    """The rules for a space that searches ``ep`` for a model with experts; else none.

    An ``ep`` among the trainer's own ``axes`` is another.
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
