# The facade: what __init__.py exports, each from its module when it is first used.
from . import verify
from .data.prepare import prepare_data, python_source_files
from .deepspeed.rules import deepspeed_requirements
from .result import FIGURES

__all__ = ["FIGURES", "deepspeed_requirements", "prepare_data", "python_source_files", "verify"]
