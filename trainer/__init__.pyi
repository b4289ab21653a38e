# The facade: what __init__.py exports, each from its module when it is first used.
from . import verify as verify
from .data.prepare import prepare_data as prepare_data, python_source_files as python_source_files
from .deepspeed.rules import deepspeed_requirements as deepspeed_requirements
from .result import FIGURES as FIGURES
