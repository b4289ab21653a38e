"""All conditions on configurations: the trainer checks them, spaces have them as rules.

Those of ``requirements.yaml``, and those that fields declare (``trainer.plan.fields``).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from trainer.plan.axes.mesh import beside_dp
from trainer.plan.axes.registry import AXES
from trainer.plan.rules.declared import counting
from trainer.plan.rules.requirement import STATED, Requirement


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
    return replace(
        each,
        text=each.text.replace("REPLICAS", ranks),
        refusal=each.refusal.replace("REPLICAS", said),
    )


REQUIREMENTS = requirements()
# Requirements that the words of a space's ``allow`` lift.
SWITCHED_OFF_BY = {"tp_across_nodes": "tp_within_node", "uneven_layers": "layers_by_stages"}
