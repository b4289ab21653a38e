"""All conditions on configurations: the trainer checks them, spaces have them as rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from trainer.plan.axes import dp, ep, pp, tp
from trainer.plan.axes.mesh import beside_dp
from trainer.plan.axes.registry import AXES
from trainer.plan.rules.declared import counting
from trainer.plan.rules.requirement import Requirement


def requirements(own_axes: Sequence[str] = ()) -> tuple[Requirement, ...]:
    """All conditions, in the order in which they are checked.

    ``own_axes``: further axes, of the built-in trainer (``trainer.plan.axes.registry``) or a
    user's.
    """
    return _requirements(tuple(own_axes))


@cache
def _requirements(own_axes: tuple[str, ...]) -> tuple[Requirement, ...]:
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
    replicas = (*dp.requirements(context), *ep.requirements(context))
    return (whole_replicas, *_OTHERS, *replicas, *further)


_HEADS = tuple(
    Requirement(
        f"heads_{name}",
        f"{condition} or (not qk_norm and not qkv_bias and head_size * num_heads == hidden_size)",
        f"qk_norm {{qk_norm}}, qkv_bias {{qkv_bias}}, head_size {{head_size}} beside {words}",
        builtin_only=True,
    )
    for name, condition, words in (
        ("grid", "gx * gy * gz == 1", "the grid gx {gx}, gy {gy}, gz {gz}; set all to 1"),
        ("engine", "engine != 'deepspeed'", "engine deepspeed; set engine: meshtune"),
    )
)
_OTHERS = (
    *tp.REQUIREMENTS,
    Requirement(
        "tune_without_compile",
        "not tune_kernels or not compile",
        "tune_kernels beside compile: the compiler chooses kernels itself; set one to false",
        builtin_only=True,
    ),
    Requirement("nodes_in_cluster", "num_nodes <= cluster_nodes"),
    *counting(),
    *pp.REQUIREMENTS,
    *_HEADS,
)
REQUIREMENTS = requirements()
# Requirements that the words of a space's ``allow`` lift.
SWITCHED_OFF_BY = {"tp_across_nodes": "tp_within_node", "uneven_layers": "layers_by_stages"}
