"""One trial's training. Knows nothing of searches; ``python -m trainer CONFIG.json`` runs it.

What is imported here is free of torch: the records that say what is trained and how, and the
formulas that follow from them.
"""

from trainer.config import (
    ConfigError,
    ModelConfig,
    OptimizerConfig,
    Precision,
    Recompute,
    TrainConfig,
)
from trainer.data.prepare import prepare_data, python_source_files
from trainer.flops import hardware_flops, model_flops
from trainer.formats import Format
from trainer.parallel.ring import share_sent
from trainer.placement import Placement, Topology
from trainer.presets import PRESETS
from trainer.result import FIGURES
from trainer.sizes import layer_weights, stage_weights, table_weights
from trainer.states import masters_are_weights

__all__ = [
    "FIGURES",
    "PRESETS",
    "ConfigError",
    "Format",
    "ModelConfig",
    "OptimizerConfig",
    "Placement",
    "Precision",
    "Recompute",
    "Topology",
    "TrainConfig",
    "hardware_flops",
    "layer_weights",
    "masters_are_weights",
    "model_flops",
    "prepare_data",
    "python_source_files",
    "share_sent",
    "stage_weights",
    "table_weights",
]
