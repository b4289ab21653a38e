"""Bounded numbers, and the error of a configuration that no run can satisfy. Torch-free."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

from pydantic import Field

# Beyond any machine: products of such numbers stay within floating point's range.
Layers = Annotated[int, Field(ge=1, le=100_000)]
Width = Annotated[int, Field(ge=1, le=10_000_000)]
Tokens = Annotated[int, Field(ge=1, le=1_000_000_000)]
Sequences = Annotated[int, Field(ge=1, le=1_000_000)]
Ranks = Annotated[int, Field(ge=1, le=2**30)]
MAX_NODES = 1_000_000
MAX_GPUS_PER_NODE = 1024
Steps = Annotated[int, Field(ge=1, le=1_000_000_000)]


class ConfigError(ValueError):
    """A training configuration that no run can satisfy; the message names the remedy."""


def optional(module: str, asked: str, otherwise: str = "") -> Any:
    """Import an optional package; raises ConfigError, which names the setting that ``asked``."""
    name = module.rpartition(".")[2]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{asked}: the package {name} is not installed; pip install {name}{otherwise}"
        ) from error
