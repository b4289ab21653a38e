from .launching import LaunchError as LaunchError, launcher_for as launcher_for
from .optimizer.policy import Policy as Policy, Problem as Problem, Proposal as Proposal
from .optimizer.registry import (
    DEFAULT as DEFAULT,
    PolicyError as PolicyError,
    make_policy as make_policy,
    policy_names as policy_names,
)
from .search.session import run_search as run_search
from .search.study import Study as Study
from .simulation.options import SimulationError as SimulationError
