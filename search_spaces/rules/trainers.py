"""Requirements of trainers as rules of a space: of DeepSpeed, and of a user's own trainer.

A user's own trainer has rules on experts and pipeline stages, depending on its framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

import numpy as np

from foundation.quantities import scalar_text
from search_spaces.frameworks import Framework
from search_spaces.language.trainer_schema import BuiltinTrainer
from search_spaces.parameters import Parameter
from search_spaces.rules.rule import Facts, Rule, expressed
from trainer import deepspeed_requirements
from trainer.plan.layouts import NO_LAYOUT
from trainer.plan.model import ModelConfig
from trainer.plan.rules.catalog import refused_settings
from trainer.plan.rules.expression import Array, ValueType, parse
from trainer.plan.stages import COUNTED, GIVEN, LAYOUT, StageLayers

# Ways to set how many layers stages have; a space has one of them.
_KINDS = (GIVEN, COUNTED, (LAYOUT,))


def of_deepspeed(trainer: BuiltinTrainer, types: Mapping[str, ValueType]) -> list[Rule]:
    """DeepSpeed's limits (``trainer.deepspeed.rules``) for a space that searches ``engine``.

    If the device is not stated, it counts as CUDA.
    """
    texts: dict[str, list[str]] = {}
    for requirement in deepspeed_requirements("cpu" if trainer.device == "cpu" else "cuda"):
        texts.setdefault(requirement.name, []).append(requirement.text)
    every = {
        name: "engine != 'deepspeed' or " + " and ".join(f"({part})" for part in parts)
        for name, parts in texts.items()
    }
    # Rules cannot read settings by name.
    for name in refused_settings(trainer, "deepspeed"):
        every[f"deepspeed_{name}"] = "engine != 'deepspeed'"
    return [expressed(name, parse(text, types)) for name, text in every.items()]


def of_experts(
    model: ModelConfig | None,
    parameters: Mapping[str, Parameter],
    axes: Sequence[str],
    types: Mapping[str, ValueType],
) -> list[Rule]:
    """Rules for a space that searches ``ep`` for a model with experts; else none.

    As in Megatron, ``ep`` ranks are taken from those of data and context parallelism, so that it is
    no factor of the world size. An ``ep`` among the trainer's own ``axes`` is a factor.
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


def of_stages(
    framework: Framework, parameters: Mapping[str, Parameter], known: Set[str], *, uneven: bool
) -> list[Rule]:
    """The rules for the layers of pipeline stages, whose numbers may differ if ``uneven``.

    ``known`` are names for which the space has facts.
    """
    if not {"num_layers", "pp", "vpp"} <= known:
        return []
    settings = [name for name in framework.stage_settings if name in parameters]
    counts = [name for name in settings if name != LAYOUT]
    names = frozenset(("num_layers", "pp", "vpp", *settings))

    def stages(facts: Facts) -> StageLayers:
        habit = {name: float(framework.counts_ends) for name in COUNTED}
        said = {name: facts.said(name, habit.get(name, 0.0)) for name in counts}
        if LAYOUT in settings:
            said[LAYOUT] = facts.said(LAYOUT, NO_LAYOUT)
        layers, pp, vpp = (facts.columns[name] for name in ("num_layers", "pp", "vpp"))
        return StageLayers(layers, pp, vpp, framework.split, **{**habit, **said})

    made = _one_kind(settings)

    def require(name: str, text: str, test: Callable[[Facts], Array], remedy: str = "") -> None:
        made.append(Rule(name, text, names, test, True, remedy))

    if framework.split == "even" and not uneven:
        text, remedy = _shared_text(settings), _remedy(framework, settings)
        require("layers_by_stages", text, lambda f: stages(f).are_even, remedy)
    text = "num_layers >= pp * vpp" if not settings else "a layer on every stage"
    if framework.split == "last_fewer":
        text = "a layer on every stage, each filled as far as the first"
    require("layers_for_stages", text, lambda f: stages(f).all_have_some)
    if LAYOUT in settings:
        text = f"{LAYOUT} has num_layers t and pp * vpp stages, and m in a rank's last chunk"
        require("layout_by_stages", text, lambda f: stages(f).fit)
    return made + _once(parameters, counts)


def _shared_text(settings: list[str]) -> str:
    given = [name for name in GIVEN if name in settings]
    counted = [name for name in COUNTED if name in settings]
    layers = " + ".join(("num_layers", *counted))
    if given:
        stages = " - ".join(("pp", *(f"({name} > 0)" for name in given)))
        return f"({' - '.join((layers, *given))}) % (({stages}) * vpp) == 0"
    return f"({layers}) % (pp * vpp) == 0" if counted else "num_layers % (pp * vpp) == 0"


def _remedy(framework: Framework, settings: list[str]) -> str:
    # Only of the kind that the space has, if it has one: two at once are refused.
    kinds = [kind for kind in _KINDS if {*kind} & {*settings}] or _KINDS
    known = [name for kind in kinds for name in kind if name in framework.stage_settings]
    ways = [f"set {', '.join(known)}"] if known else []
    return ", or ".join([*ways, "allow: [uneven_layers]"])


def _once(parameters: Mapping[str, Parameter], settings: list[str]) -> list[Rule]:
    """Rules that, without a pipeline, settings without effect have their first values."""
    made = []
    for name in settings:
        parameter = parameters[name]
        if len(parameter.values) == 1:
            continue

        def test(facts: Facts, parameter: Parameter = parameter) -> Array:
            return (facts.columns["pp"] > 1) | (facts.columns[parameter.name] == parameter.array[0])

        text = f"pp > 1 or {name} == {scalar_text(parameter.pinned)}"
        made.append(Rule(f"{name}_needs_pp", text, frozenset((name, "pp")), test))
    return made


def _one_kind(settings: list[str]) -> list[Rule]:
    """A rule that layers are given, or embedding and loss counted, or a layout used: not two of
    these, which Megatron-LM refuses."""
    given = ([name for name in kind if name in settings] for kind in _KINDS)
    kinds = [kind for kind in given if kind]
    if len(kinds) < 2:
        return []

    def said(facts: Facts, name: str) -> Array:
        if name == LAYOUT:
            return facts.said(name, NO_LAYOUT) != NO_LAYOUT
        return facts.said(name, 0.0) > 0

    def test(facts: Facts) -> Array:
        some = [np.logical_or.reduce([said(facts, name) for name in kind]) for kind in kinds]
        return sum(np.where(each, 1, 0) for each in some) < 2

    names = [name for kind in kinds for name in kind]
    text = f"not {'both' if len(kinds) == 2 else 'two'}: {'; '.join(map(', '.join, kinds))}"
    return [Rule("stages_given_or_counted", text, frozenset(names), test, True)]
