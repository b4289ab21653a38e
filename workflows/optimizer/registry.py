"""Policies by name: those that come with meshtune, and those of other distributions.

A distribution adds its own by an entry point::

    [project.entry-points."meshtune.policies"]
    mine = "my_package.my_module:MyPolicy"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foundation.registry import Registry, RegistryError
from search_spaces import SearchSpace

if TYPE_CHECKING:  # scipy: half a second
    from analysis import Pricing
    from workflows.optimizer.policy import Policy, Problem

DEFAULT = "meshtune"
POLICIES: Registry[Callable[[Problem], Policy]] = Registry(
    "policy",
    "meshtune.policies",
    {
        "meshtune": "workflows.optimizer.model_guided:MeshtunePolicy",
        "deephyper": "workflows.optimizer.builtin:DeepHyperPolicy",
        "optuna": "workflows.optimizer.optuna:OptunaPolicy",
        "cost-model": "workflows.optimizer.model_guided:CostModelPolicy",
        "sobol": "workflows.optimizer.sobol:SobolPolicy",
        "random": "workflows.optimizer.builtin:RandomPolicy",
    },
)


class PolicyError(ValueError):
    """A policy that cannot search this space here; the message names the remedy."""


def make_policy(
    space: SearchSpace,
    seed: int,
    name: str = DEFAULT,
    pricing: Pricing | None = None,
    only: Sequence[Mapping[str, Any]] | None = None,
) -> Policy:
    """The policy of that name, for one space; see ``Problem`` for the other arguments.

    Raises RegistryError if there is no such policy, PolicyError if it cannot search this space.
    """
    from workflows.optimizer.policy import Policy, Problem

    problem = Problem(space, seed, pricing, only)
    policy = POLICIES.get(name)(problem)
    if not isinstance(policy, Policy):
        raise RegistryError(
            f"policy {name!r} is of type {type(policy).__name__}; it must be a workflows.Policy"
        )
    if space.budget.explore:
        from workflows.optimizer.exploration import ExploringPolicy

        return ExploringPolicy(problem, policy)
    return policy
