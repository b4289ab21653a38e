"""A parameter and its values: a list of them, or the grid of an interval."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from foundation.documents import as_written
from foundation.values import Scalar
from search_spaces.spans import Span
from trainer.plan.axes import FURTHER_AXES
from trainer.plan.config import TrainConfig
from trainer.plan.rules.expression import ValueType

MAX_CONFIGS = 2**62  # raw configurations: they are numbered with 64 bits

# What a trial's settings say, not what is searched.
_FIXED = {
    *("model", "data", "seed", "optimizer", "lr_scheduler", "goldfish", "validation", "metrics"),
    *("device", "device_memory_bytes", "collective_timeout_s", "time_communication"),
    *("warmup_steps", "measured_steps", "save", "save_interval", "async_save", "load"),
    *("initial_load_path", "last_save_in_hf", "documents", "loss_mask", "ddp_bucket_size"),
    *("ranks_per_node", "ranks_per_pair"),  # facts of the cluster
}
SEARCHABLE = tuple(name for name in TrainConfig.model_fields if name not in _FIXED)

Count = Annotated[int, Field(ge=1)]
ANNOTATIONS: dict[str, Any] = {
    "num_nodes": Count,
    **{
        name: Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        for name, field in TrainConfig.model_fields.items()
        if name in SEARCHABLE
    },
}
"""What a value of each parameter has to be."""
BUILTIN_NAMES = tuple(ANNOTATIONS)
AXES = tuple(FURTHER_AXES)
"""Parameters that split the world whether or not a space names them as axes."""
# What frameworks call them, without what such names end with.
_USUAL = {
    "tp": ("tensor_parallel", "tensor_model_parallel"),
    "pp": ("pipeline_parallel", "pipeline_model_parallel"),
    "cp": ("context_parallel",),
    "ep": ("expert_parallel", "expert_model_parallel"),
    "mbs": ("micro_batch", "microbatch", "train_micro_batch_size_per_gpu"),
    "gas": ("gradient_accumulation", "gradient_accumulation_steps", "grad_acc", "grad_acc_steps"),
    "first_stage_layers": (
        "decoder_first_pipeline_num_layers",
        "num_layers_in_first_pipeline_stage",
    ),
    "last_stage_layers": (
        "decoder_last_pipeline_num_layers",
        "num_layers_in_last_pipeline_stage",
    ),
    "account_for_embedding": ("account_for_embedding_in_pipeline_split",),
    "account_for_loss": ("account_for_loss_in_pipeline_split",),
    "pipeline_layout": ("pipeline_model_parallel_layout",),
}
_ENDINGS = ("_size", "_degree", "_world_size")


def usual_name(name: str) -> str:
    """What spaces call a parameter that a framework calls so; a name of one's own as it is."""
    for usual, stems in _USUAL.items():
        if any(name == stem + ending for stem in stems for ending in ("", *_ENDINGS)):
            return usual
    return name


@dataclass(frozen=True)
class Parameter:
    """A name and the values it may take, in the order of the space file.

    Attributes:
        name: of the parameter.
        values: that policies draw; of a continuous parameter the grid.
        span: the interval of a continuous parameter.
        ordered: whether the values' order is said by the file: of words that they have one, of
            numbers that they have none. None: numbers have one, words and truth values have none.
    """

    name: str
    values: tuple[Scalar, ...]
    span: Span | None = None
    ordered: bool | None = None

    @property
    def value_type(self) -> ValueType:
        return value_type_of(self.values[0])

    @property
    def pinned(self) -> Scalar:
        """The value that stands for "inactive" in a raw configuration."""
        return self.values[0]

    @cached_property
    def array(self) -> np.ndarray:
        """The values as ``column`` gives them."""
        return self.column(self.values)

    def column(self, values: Any) -> np.ndarray:
        """Values as a numpy column: float64, bool or str."""
        array = np.asarray(values)
        if self.value_type == "number":
            return array.astype(np.float64)
        return array.astype(bool if self.value_type == "boolean" else str)

    def member(self, value: Any) -> Scalar:
        """The value of this parameter that equals ``value`` (of any numeric type).

        Raises:
            ValueError: if there is none.
        """
        if isinstance(value, np.generic):
            value = value.item()
        if self.span is not None:
            if value in self.span:
                return int(value) if self.span.whole else float(value)
            kind = "whole numbers" if self.span.whole else "numbers"
            raise ValueError(
                f"{self.name}: found {as_written(value)}, accepted {kind} from {self.span}"
            )
        for own in self.values:
            if own == value and isinstance(own, bool) == isinstance(value, bool):
                return own
        accepted = ", ".join(as_written(v) for v in self.values[:20])
        more = ", ..." if len(self.values) > 20 else ""
        raise ValueError(f"{self.name}: found {as_written(value)}, accepted {accepted}{more}")

    @property
    def varies(self) -> bool:
        return len(self.values) > 1

    @cached_property
    def shares(self) -> np.ndarray | None:
        """How often each value is to be drawn, relative to the others; None: all alike."""
        shares = None if self.span is None else self.span.shares
        return None if shares is None or np.all(shares == 1) else shares

    def drawn(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Values at random, each as often as its share."""
        shares = None if self.shares is None else self.shares / self.shares.sum()
        return np.array(self.values)[rng.choice(len(self.values), count, p=shares)]

    def place(self, value: Scalar) -> int:
        """Which of the values it is; of a continuous parameter the nearest."""
        if self.span is None:
            return self.values.index(value)
        return self.span.place(float(value)) if self.varies else 0

    def nearest(self, value: Scalar) -> Scalar:
        """The value at that place."""
        return self.values[self.place(value)]

    def unit(self, value: Scalar) -> float:
        """Where a value lies from the first (0) to the last (1), by its scale or else its place."""
        if self.span is not None:
            return self.span.unit(float(value))
        return self.place(value) / max(1, len(self.values) - 1)

    def held(self) -> Parameter:
        """The same at one value: a continuous one still takes any for it."""
        return replace(self, values=self.values[:1])

    def as_file(self) -> Any:
        """What a space file says of it, in the shortest way."""
        if self.span is not None:
            return self.span.as_file()
        values = list(self.values)
        if self.ordered is not None:
            return {"ordered" if self.ordered else "categories": values}
        return values[0] if len(values) == 1 else values


def value_type_of(value: Scalar) -> ValueType:
    if isinstance(value, bool):
        return "boolean"
    return "text" if isinstance(value, str) else "number"
