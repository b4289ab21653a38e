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
from .search.study import ClosedError, Study, space_of
from .simulation.options import SimulationError
from .values import (
    ArgumentError,
    checked_columns,
    checked_path,
    checked_seed,
    checked_text,
    checked_whole,
    refused,
)

__all__ = [
    "DEFAULT",
    "ArgumentError",
    "ClosedError",
    "Driver",
    "LaunchError",
    "Policy",
    "PolicyError",
    "Problem",
    "Proposal",
    "SimulationError",
    "Study",
    "checked_columns",
    "checked_path",
    "checked_seed",
    "checked_text",
    "checked_whole",
    "launcher_for",
    "main",
    "make_policy",
    "policy_names",
    "refused",
    "run_search",
    "space_of",
]
