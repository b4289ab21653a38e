from .cli.main import main as main
from .launching import launcher_for as launcher_for
from .optimizer.policy import Policy as Policy, Problem as Problem, Proposal as Proposal
from .optimizer.registry import PolicyError as PolicyError
from .search.session import Search as Search
from .search.study import Study as Study, space_of as space_of
