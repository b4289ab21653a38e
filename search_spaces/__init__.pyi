# The facade: what __init__.py exports, each from its module when it is first used.
from .cluster import Cluster, Collective, Link, Nic
from .defaults import SpaceArgumentError, default_space
from .errors import SpaceError
from .export import Export
from .frameworks import Framework
from .hints import notes
from .known import FRAMEWORKS, framework_named, log_format
from .language.adapter_schema import AdapterFile
from .language.log_schema import ResultPatterns
from .language.schema import json_schema
from .load import load_space
from .parameters import Parameter
from .points.candidates import Candidates
from .points.counting import CheckReport, check
from .points.enumeration import ValidConfigs
from .rules.rule import Facts
from .shipped import shipped_records
from .space import Objective, SearchSpace
from .trainers.config_files import wrong_file_name
from .trainers.stated import StatedOptions
from .trainers.trainer import Trainer

__all__ = [
    "FRAMEWORKS",
    "AdapterFile",
    "Candidates",
    "CheckReport",
    "Cluster",
    "Collective",
    "Export",
    "Facts",
    "Framework",
    "Link",
    "Nic",
    "Objective",
    "Parameter",
    "ResultPatterns",
    "SearchSpace",
    "SpaceArgumentError",
    "SpaceError",
    "StatedOptions",
    "Trainer",
    "ValidConfigs",
    "check",
    "default_space",
    "framework_named",
    "json_schema",
    "load_space",
    "log_format",
    "notes",
    "shipped_records",
    "wrong_file_name",
]
