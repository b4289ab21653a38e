# The facade: what __init__.py exports, each from its module when it is first used.
from .cluster import (
    MAX_GPUS_PER_NODE,
    MAX_NODES,
    Cluster,
    Collective,
    Link,
    Nic,
    read_cluster,
    shipped_cluster,
    shipped_clusters,
)
from .defaults import SpaceArgumentError, default_space
from .errors import SpaceError
from .export import Export, exported
from .frameworks import Framework
from .hints import notes
from .known import FRAMEWORKS, framework_named, log_format
from .language.adapter_schema import AdapterFile
from .language.fields import Scalar, VariableName, seconds
from .language.log_schema import ResultPatterns
from .language.schema import json_schema
from .layouts import NO_LAYOUT, parsed_layout
from .load import load_space, shipped_spaces
from .parameters import MAX_CONFIGS, Parameter
from .points.candidates import Candidates
from .points.counting import CheckReport, RuleCount, check
from .points.enumeration import Indices, ValidConfigs
from .rules.rule import Facts, Rule
from .shipped import shipped_records
from .space import Objective, SearchSpace, Violations
from .stages import COUNTED, GIVEN, LAYOUT, StageLayers, StageSettings
from .trainers.adapters import read_adapter, shipped_adapters
from .trainers.config_files import wrong_file_name
from .trainers.sizes import Sizes, implied_options, told_sizes
from .trainers.trainer import Trainer, TrialFacts

__all__ = [
    "COUNTED",
    "FRAMEWORKS",
    "GIVEN",
    "LAYOUT",
    "MAX_CONFIGS",
    "MAX_GPUS_PER_NODE",
    "MAX_NODES",
    "NO_LAYOUT",
    "AdapterFile",
    "Candidates",
    "CheckReport",
    "Cluster",
    "Collective",
    "Export",
    "Facts",
    "Framework",
    "Indices",
    "Link",
    "Nic",
    "Objective",
    "Parameter",
    "ResultPatterns",
    "Rule",
    "RuleCount",
    "Scalar",
    "SearchSpace",
    "Sizes",
    "SpaceArgumentError",
    "SpaceError",
    "StageLayers",
    "StageSettings",
    "Trainer",
    "TrialFacts",
    "ValidConfigs",
    "VariableName",
    "Violations",
    "check",
    "default_space",
    "exported",
    "framework_named",
    "implied_options",
    "json_schema",
    "load_space",
    "log_format",
    "notes",
    "parsed_layout",
    "read_adapter",
    "read_cluster",
    "seconds",
    "shipped_adapters",
    "shipped_cluster",
    "shipped_clusters",
    "shipped_records",
    "shipped_spaces",
    "told_sizes",
    "wrong_file_name",
]
