"""What a trainer of the user's requires of a pipeline's stages, by what its framework can do."""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np

from search_spaces.frameworks import Framework
from search_spaces.parameters import Parameter
from search_spaces.rules.rule import Facts, Rule
from search_spaces.stages import STAGE_SETTINGS, StageLayers, StageSettings
from trainer import Array

_GIVEN, _COUNTED = STAGE_SETTINGS[:2], STAGE_SETTINGS[2:]


def rules(
    framework: Framework, parameters: Mapping[str, Parameter], known: Set[str], *, uneven: bool
) -> list[Rule]:
    """The rules for the layers of a pipeline's stages.

    Args:
        framework: of the trainer; settings that it does not know are read by none.
        parameters: of the space.
        known: names that the space has facts for.
        uneven: the space says that stages may differ.
    """
    if not {"num_layers", "pp", "vpp"} <= known:
        return []
    settings = [name for name in framework.stage_settings if name in parameters]
    names = frozenset(("num_layers", "pp", "vpp", *settings))

    def stages(facts: Facts) -> StageLayers:
        habit = {name: float(framework.counts_ends) for name in _COUNTED}
        said = {name: facts.numbers(name, habit.get(name, 0.0)) for name in settings}
        layers, pp, vpp = (facts.columns[name] for name in ("num_layers", "pp", "vpp"))
        return StageLayers(layers, pp, vpp, StageSettings(**{**habit, **said}), framework.split)

    made = _one_kind(settings)
    if framework.split == "even" and not uneven:
        made.append(
            Rule(
                "layers_by_stages",
                _shared_text(settings),
                names,
                lambda facts: stages(facts).are_even,
                required=True,
                remedy=_remedy(framework, settings),
            )
        )
    text = "num_layers >= pp * vpp" if not settings else "a layer on every stage"
    if framework.split == "last_fewer":
        text = "a layer on every stage, each filled as far as the first"
    made.append(
        Rule("layers_for_stages", text, names, lambda f: stages(f).all_have_some, required=True)
    )
    return made + _once(parameters, settings)


def _shared_text(settings: list[str]) -> str:
    given = [name for name in _GIVEN if name in settings]
    counted = [name for name in _COUNTED if name in settings]
    layers = " + ".join(("num_layers", *counted))
    if given:
        stages = " - ".join(("pp", *(f"({name} > 0)" for name in given)))
        return f"({' - '.join((layers, *given))}) % (({stages}) * vpp) == 0"
    return f"({layers}) % (pp * vpp) == 0" if counted else "num_layers % (pp * vpp) == 0"


def _remedy(framework: Framework, settings: list[str]) -> str:
    # Of the kind that the space has, if it has one: both at once are refused.
    kinds = [kind for kind in (_GIVEN, _COUNTED) if {*kind} & {*settings}] or [_GIVEN, _COUNTED]
    known = [name for kind in kinds for name in kind if name in framework.stage_settings]
    ways = [f"set {', '.join(known)}"] if known else []
    return ", or ".join([*ways, "allow: [uneven_layers]"])


def _once(parameters: Mapping[str, Parameter], settings: list[str]) -> list[Rule]:
    """Without a pipeline settings change nothing: each counts with its first value."""
    made = []
    for name in settings:
        parameter = parameters[name]
        if len(parameter.values) == 1:
            continue

        def test(facts: Facts, parameter: Parameter = parameter) -> Array:
            return (facts.columns["pp"] > 1) | (facts.columns[parameter.name] == parameter.array[0])

        text = f"pp > 1 or {name} == {str(parameter.pinned).lower()}"
        made.append(Rule(f"{name}_needs_pp", text, frozenset((name, "pp")), test))
    return made


def _one_kind(settings: list[str]) -> list[Rule]:
    """Layers are given, or embedding and loss counted (Megatron-LM refuses both at once)."""
    given = [name for name in _GIVEN if name in settings]
    counted = [name for name in _COUNTED if name in settings]
    if not given or not counted:
        return []

    def test(facts: Facts) -> Array:
        some = np.logical_or.reduce([facts.numbers(name, 0.0) > 0 for name in given])
        other = np.logical_or.reduce([facts.numbers(name, 0.0) > 0 for name in counted])
        return np.logical_not(some & other)

    text = f"not both: {', '.join(given)}; {', '.join(counted)}"
    return [Rule("stages_given_or_counted", text, frozenset((*given, *counted)), test, True)]
