from .cli.main import main
from .launching import launcher_for
from .optimizer.policy import Policy, Problem, Proposal
from .optimizer.registry import PolicyError
from .search.session import Search
from .search.study import Study, space_of

__all__ = [
    "Policy",
    "PolicyError",
    "Problem",
    "Proposal",
    "Search",
    "Study",
    "launcher_for",
    "main",
    "space_of",
]
