"""All conditions on configurations, of ``requirements.yaml`` and of ``trainer.plan.fields``.

The trainer checks them; spaces have them as rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from foundation.messages import shown
from trainer.plan.annotations import Counts, Refused, grouped
from trainer.plan.axes.mesh import beside_dp
from trainer.plan.axes.registry import AXES
from trainer.plan.fields import Choices, Settings
from trainer.plan.rules.expression import Scalar
from trainer.plan.rules.requirement import STATED, TYPES, Requirement


def counting() -> tuple[Requirement, ...]:
    """Requirements that a field without effect has its default."""
    return tuple(
        Requirement(
            counts.rule,
            f"{_all(_are_default(names))} or {_all([counts.where])}",
            counts.why and f"{_values(names)} {counts.why}; {_remedy(names)}",
            counts.trainers,
        )
        for counts, names in grouped(Choices, Counts).items()
    )


def refused(engine: str) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(
            f"{engine}_{refused.rule or names[0]}",
            " and ".join(
                [f"{names[0]} != {_written(value)}" for value in refused.values]
                or _are_default(names)
            ),
            f"{_values(names)}: {refused.why}; {refused.remedy or _remedy(names)}",
        )
        for refused, names in grouped(Choices, Refused).items()
        if refused.engine == engine
    )


def refused_settings(settings: Settings, engine: str) -> dict[str, str]:
    """Reason and remedy for each setting that an engine refuses, by name."""
    found = {}
    for refused, names in grouped(Settings, Refused).items():
        for name in names:
            value = getattr(settings, name)
            if refused.engine == engine and value != Settings.model_fields[name].default:
                said = f"{name} {shown(value)}" if isinstance(value, str) else name
                remedy = f"set {name}: false" if value is True else f"remove {name}"
                found[name] = f"{said}: {refused.why}; {remedy}"
    return found


def _are_default(names: Sequence[str]) -> list[str]:
    defaults = {name: Choices.model_fields[name].default for name in names}
    return [
        f"not {name}" if TYPES[name] == "boolean" else f"{name} == {_written(default)}"
        for name, default in defaults.items()
    ]


def _values(names: Sequence[str]) -> str:
    """Names with placeholders for their values; a boolean's name says enough."""
    return ", ".join(name if TYPES[name] == "boolean" else f"{name} {{{name}}}" for name in names)


def _remedy(names: Sequence[str]) -> str:
    default = "false" if TYPES[names[0]] == "boolean" else Choices.model_fields[names[0]].default
    if len(names) == 1:
        return f"set {names[0]}: {default}"
    return f"set {'both' if len(names) == 2 else 'all of them'} to {default}"


def _written(value: Scalar) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def _all(parts: Sequence[str]) -> str:
    """Parts joined by ``and``, parenthesized for the reader where an ``or`` follows."""
    text = " and ".join(parts)
    return f"({text})" if " and " in text else text


@cache
def requirements(*own_axes: str) -> tuple[Requirement, ...]:
    """All conditions, in the order in which they are checked.

    ``own_axes``: further axes, of the built-in trainer (``trainer.plan.axes.registry``) or a
    user's.
    """
    axes = beside_dp(own_axes)
    whole_replicas = Requirement(
        f"world_by_{'_'.join(axes)}",
        f"world_size % ({' * '.join(axes)}) == 0",
        f"{' * '.join(f'{name} {{{name}}}' for name in axes)} does not divide the number of ranks, "
        "{world_size}",
        axes=axes,
    )
    further = [one for axis in own_axes if axis in AXES for one in AXES[axis].requirements]
    context = "cp" in own_axes
    replicas = [_of_replicas(each, context) for each in (*STATED["dp"], *STATED["ep"])]
    before = (*STATED["tp"], *STATED["cluster"])
    choices = (*counting(), *STATED["pp"], *STATED["heads"])
    return (whole_replicas, *before, *choices, *replicas, *further)


def _of_replicas(each: Requirement, context: bool) -> Requirement:
    """A requirement on the ranks with the same weights, among them ``context``-parallel ones."""
    ranks, said = ("(dp * cp)", "dp {dp} * cp {cp}") if context else ("dp", "dp {dp}")
    text, message = each.text.replace("REPLICAS", ranks), each.refusal.replace("REPLICAS", said)
    return replace(each, text=text, refusal=message)


REQUIREMENTS = requirements()
# Requirements that the words of a space's ``allow`` lift.
SWITCHED_OFF_BY = {"tp_across_nodes": "tp_within_node", "uneven_layers": "layers_by_stages"}
