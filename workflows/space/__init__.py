"""The search space: what a YAML file may say, and what follows from it.

>>> space = load_space("gpt_175b_frontier_table4")
>>> space.raw_size, check(space).valid
(3264, 2788)
"""

from .counting import CheckReport, RuleCount, check
from .load import load_space, shipped_spaces
from .parameters import Parameter
from .rules import Rule
from .schema import json_schema
from .source import SpaceError
from .space import Objective, SearchSpace, Violations

__all__ = [
    "CheckReport",
    "Objective",
    "Parameter",
    "Rule",
    "RuleCount",
    "SearchSpace",
    "SpaceError",
    "Violations",
    "check",
    "json_schema",
    "load_space",
    "shipped_spaces",
]
