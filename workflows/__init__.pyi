from .cli.main import main
from .launching import LaunchError, launcher_for
from .optimizer.policy import Policy, Problem, Proposal
from .optimizer.registry import PolicyError
from .search.session import Search, run_search
from .search.study import ClosedError, Study, space_of
from .simulation.options import SimulationError

__all__ = [
    "ClosedError",
    "LaunchError",
    "Policy",
    "PolicyError",
    "Problem",
    "Proposal",
    "Search",
    "SimulationError",
    "Study",
    "launcher_for",
    "main",
    "run_search",
    "space_of",
]
