from .cli.main import main
from .launching import LaunchError, launcher_for
from .optimizer.policy import Policy, Problem, Proposal
from .optimizer.registry import (
    DEFAULT,
    PolicyError,
    make_policy,
    policy_names,
)
from .search.driver import Driver
from .search.session import run_search
from .search.study import Study
from .simulation.options import SimulationError

__all__ = [
    "DEFAULT",
    "Driver",
    "LaunchError",
    "Policy",
    "PolicyError",
    "Problem",
    "Proposal",
    "SimulationError",
    "Study",
    "launcher_for",
    "main",
    "make_policy",
    "policy_names",
    "run_search",
]
