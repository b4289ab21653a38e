# The facade: what __init__.py exports, each from its module when it is first used.
from .cluster import Cluster as Cluster, Collective as Collective, Link as Link, Nic as Nic
from .defaults import SpaceArgumentError as SpaceArgumentError, default_space as default_space
from .errors import SpaceError as SpaceError
from .export import Export as Export
from .frameworks import Framework as Framework
from .hints import notes as notes
from .known import (
    FRAMEWORKS as FRAMEWORKS,
    framework_named as framework_named,
    log_format as log_format,
)
from .language.adapter_schema import AdapterFile as AdapterFile
from .language.log_schema import ResultPatterns as ResultPatterns
from .language.schema import json_schema as json_schema
from .load import load_space as load_space
from .parameters import Parameter as Parameter
from .points.candidates import Candidates as Candidates
from .points.counting import CheckReport as CheckReport, check as check
from .points.enumeration import ValidConfigs as ValidConfigs
from .shipped import shipped_records as shipped_records
from .space import Objective as Objective, SearchSpace as SearchSpace
from .trainers.config_files import wrong_file_name as wrong_file_name
from .trainers.stated import StatedOptions as StatedOptions
from .trainers.trainer import Trainer as Trainer
