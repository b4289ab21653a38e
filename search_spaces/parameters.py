"""A parameter and its finite list of values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from search_spaces.language.fields import Number, Scalar
from search_spaces.language.schema import Log2, Range
from search_spaces.stages import STAGE_SETTINGS
from slurm import Document, as_written, wrong_value
from trainer import MAX_NUMBER, TrainConfig, ValueType

MAX_VALUES = 10_000
MAX_CONFIGS = 2**62  # raw configurations: they are numbered with 64 bits

# What a trial's settings say, not what is searched.
_FIXED = {
    *("model", "data", "seed", "optimizer", "device", "device_memory_bytes"),
    *("warmup_steps", "measured_steps", "collective_timeout_s", "time_communication"),
    *("save", "save_interval", "load"),
    *("ranks_per_node", "ranks_per_pair"),  # facts of the cluster
}
SEARCHABLE = tuple(name for name in TrainConfig.model_fields if name not in _FIXED)

_Count = Annotated[int, Field(ge=1)]
_ANNOTATIONS: dict[str, Any] = {
    "num_nodes": _Count,
    **{
        name: Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        for name, field in TrainConfig.model_fields.items()
        if name in SEARCHABLE
    },
}
_TYPES: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(annotation) for name, annotation in _ANNOTATIONS.items()
}
_DEGREE = TypeAdapter[Any](_Count)
# Of a user's own trainer: layers of a stage, and whether something counts as a layer.
_STAGE_SETTINGS: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(bool if name.startswith("account") else Annotated[int, Field(ge=0)])
    for name in STAGE_SETTINGS
}
# A user's own trainer may mean something else by these; no built-in rule reads them.
_FREE = {
    *("recompute", "precision", "placement", "engine", "refresh_secondary", "reduce_precision"),
}
BUILTIN_NAMES = tuple(_TYPES)
AXES = ("cp",)
"""Parameters of a user's own command that split the world whether or not it says so."""
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
    """A name and the values it may take, in the order of the space file."""

    name: str
    values: tuple[Scalar, ...]

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
        for own in self.values:
            if own == value and isinstance(own, bool) == isinstance(value, bool):
                return own
        accepted = ", ".join(as_written(v) for v in self.values[:20])
        more = ", ..." if len(self.values) > 20 else ""
        raise ValueError(f"{self.name}: found {as_written(value)}, accepted {accepted}{more}")


def value_type_of(value: Scalar) -> ValueType:
    if isinstance(value, bool):
        return "boolean"
    return "text" if isinstance(value, str) else "number"


def build(
    name: str, spec: Any, document: Document, *, own_trainer: bool, is_axis: bool = False
) -> Parameter:
    """The parameter of a checked file; raises SpaceError at the value that is wrong.

    Args:
        name: of the parameter.
        spec: its values as the file has them.
        document: the file.
        own_trainer: a trainer of the user's may take any values.
        is_axis: it is a parallel axis that only that trainer knows: a degree.
    """
    path: tuple[str | int, ...] = ("parameters", name)
    if isinstance(spec, Range):
        values: Sequence[Scalar] = _range(spec, path, document)
    elif isinstance(spec, Log2):
        values = _log2(spec, path, document)
    else:
        values = spec if isinstance(spec, list) else [spec]
    if len(values) > MAX_VALUES:
        raise document.error(
            path, f"found {len(values):,} values, accepted at most {MAX_VALUES:,}", at_value=True
        )
    adapter = None if own_trainer and name in _FREE else _TYPES.get(name)
    adapter = _STAGE_SETTINGS.get(name, adapter) if own_trainer else adapter
    adapter = _DEGREE if is_axis else adapter
    listed = isinstance(spec, list)
    for index, value in enumerate(values):
        where = (*path, index) if listed else path
        _check(value, adapter, where, document)
    _check_together(values, path, document)
    if any(isinstance(value, float) for value in values):
        values = [float(value) for value in values]
    return Parameter(name, tuple(values))


def _check(
    value: Scalar,
    adapter: TypeAdapter[Any] | None,
    where: tuple[str | int, ...],
    document: Document,
) -> None:
    if isinstance(value, (int, float)) and not abs(value) <= MAX_NUMBER:  # NaN compares false
        raise document.error(
            where, f"found {as_written(value)}, accepted numbers up to 2^53", at_value=True
        )
    if adapter is None:
        return
    try:
        typed = adapter.validate_python(value, strict=True)
        if type(typed) is not type(value):  # a literal 1 takes 1.0 and true for equal
            raise document.error(
                where, f"found {as_written(value)}, accepted a whole number", at_value=True
            )
    except ValidationError as error:
        raise document.error(where, wrong_value(error.errors()[0]), at_value=True) from None


def _check_together(
    values: Sequence[Scalar], path: tuple[str | int, ...], document: Document
) -> None:
    first = value_type_of(values[0])
    seen: set[Scalar] = set()
    for index, value in enumerate(values):
        if value_type_of(value) != first:
            raise document.error(
                (*path, index),
                f"found {as_written(value)} among values such as {as_written(values[0])}, "
                "accepted values of one type",
                at_value=True,
            )
        if value in seen:
            raise document.error(
                (*path, index), f"found {as_written(value)} twice, accepted once", at_value=True
            )
        seen.add(value)


def _range(spec: Range, path: tuple[str | int, ...], document: Document) -> list[Number]:
    low, high = spec.range
    whole = isinstance(low, int) and isinstance(high, int)
    if spec.step is None and not whole:
        raise document.error(path, "a range of fractions needs 'step'", at_value=True)
    step: Number = 1 if spec.step is None else spec.step
    if step <= 0:
        raise document.error(
            (*path, "step"), f"found {step}, accepted a step above zero", at_value=True
        )
    if low > high:
        raise document.error(
            (*path, "range"),
            f"found [{low}, {high}], accepted the lower end first: [{high}, {low}]",
            at_value=True,
        )
    for index, end in enumerate(spec.range):
        _check(end, None, (*path, "range", index), document)
    # The tolerance lets [0.1, 0.3] with step 0.1 reach 0.3.
    steps = (high - low) / step + 1e-9
    if steps >= MAX_VALUES:
        raise document.error(
            path, f"found {steps:.3g} steps, accepted at most {MAX_VALUES:,} values", at_value=True
        )
    count = math.floor(steps) + 1
    if whole and isinstance(step, int):
        return [low + i * step for i in range(count)]
    return [round(low + i * step, 12) for i in range(count)]


def _log2(spec: Log2, path: tuple[str | int, ...], document: Document) -> list[int]:
    low, high = spec.log2
    for index, end in enumerate(spec.log2):
        if end < 1 or end & (end - 1):
            raise document.error(
                (*path, "log2", index),
                f"found {end}, accepted powers of two: 1, 2, 4, 8, ...",
                at_value=True,
            )
    if low > high:
        raise document.error(
            (*path, "log2"),
            f"found [{low}, {high}], accepted the lower end first: [{high}, {low}]",
            at_value=True,
        )
    return [1 << i for i in range(low.bit_length() - 1, high.bit_length())]
