# The facade: what __init__.py exports, each from its module when it is first used.
from .axes import (
    FURTHER_AXES,
    GRID,
    RANK_ORDERS,
    SPLITS,
    Axes,
    beside_dp,
    is_pp_inside,
    ordered,
    ranks_of_replica,
)
from .config import (
    ConfigError,
    Documents,
    Goldfish,
    LRScheduler,
    Metrics,
    ModelConfig,
    OptimizerConfig,
    Precision,
    Recompute,
    TrainConfig,
    Validation,
)
from .data.prepare import prepare_data, python_source_files
from .deepspeed.config import DEEPSPEED_BUCKET_ELEMENTS
from .deepspeed.rules import deepspeed_requirements
from .flops import hardware_flops, model_flops
from .formats import Format
from .parallel.ring import share_sent
from .placement import Placement, Topology
from .presets import PRESETS, resolve_presets
from .result import FIGURES
from .rules.expression import (
    MAX_NUMBER,
    Array,
    Expression,
    ExpressionError,
    ValueType,
    constant,
    parse,
)
from .rules.nearest import closest, nearest
from .rules.requirement import DEGREES, QUANTIZED
from .rules.requirements import SWITCHED_OFF_BY, requirements
from .sizes import (
    LAYER_GATHERS,
    LAYER_SUMS,
    Latent,
    Matrix,
    Mixture,
    attention_weights,
    expert_weights,
    ffn_weights,
    latent_matrices,
    layer_matrices,
    layer_weights,
    mixed_layers,
    model_weights,
    stage_weights,
    table_weights,
)
from .states import masters_are_weights, state_bytes
from .zero.layout import gathers_per_step

__all__ = [
    "DEEPSPEED_BUCKET_ELEMENTS",
    "DEGREES",
    "FIGURES",
    "FURTHER_AXES",
    "GRID",
    "LAYER_GATHERS",
    "LAYER_SUMS",
    "MAX_NUMBER",
    "PRESETS",
    "QUANTIZED",
    "RANK_ORDERS",
    "SPLITS",
    "SWITCHED_OFF_BY",
    "Array",
    "Axes",
    "ConfigError",
    "Documents",
    "Expression",
    "ExpressionError",
    "Format",
    "Goldfish",
    "LRScheduler",
    "Latent",
    "Matrix",
    "Metrics",
    "Mixture",
    "ModelConfig",
    "OptimizerConfig",
    "Placement",
    "Precision",
    "Recompute",
    "Topology",
    "TrainConfig",
    "Validation",
    "ValueType",
    "attention_weights",
    "beside_dp",
    "closest",
    "constant",
    "deepspeed_requirements",
    "expert_weights",
    "ffn_weights",
    "gathers_per_step",
    "hardware_flops",
    "is_pp_inside",
    "latent_matrices",
    "layer_matrices",
    "layer_weights",
    "masters_are_weights",
    "mixed_layers",
    "model_flops",
    "model_weights",
    "nearest",
    "ordered",
    "parse",
    "prepare_data",
    "python_source_files",
    "ranks_of_replica",
    "requirements",
    "resolve_presets",
    "share_sent",
    "stage_weights",
    "state_bytes",
    "table_weights",
]
