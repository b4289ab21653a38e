"""The search space: what a YAML file may say, and what follows from it.

>>> space = load_space("gpt_175b_frontier_table4")
>>> space.raw_size, check(space).valid
(3264, 2788)
"""

from search_spaces.language.document import SpaceError
from search_spaces.language.schema import json_schema
from search_spaces.load import load_space, shipped_spaces
from search_spaces.parameters import Parameter
from search_spaces.points.counting import CheckReport, RuleCount, check
from search_spaces.rules.rule import Rule
from search_spaces.space import Objective, SearchSpace, Violations

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
