"""The values that a space file gives a parameter, checked."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from foundation.documents import Document, as_written
from foundation.records import wrong_value
from foundation.values import Number, Scalar
from search_spaces.language.schema import Categories, Float, Int, Log2, Ordered, Range
from search_spaces.layouts import NO_LAYOUT, LayoutError, parsed_layout
from search_spaces.parameters import ANNOTATIONS, Count, Parameter, value_type_of
from search_spaces.spans import FINEST, Span
from search_spaces.stages import COUNTED, GIVEN, LAYOUT
from trainer.plan.rules.expression import MAX_NUMBER

MAX_VALUES = 10_000

_TYPES: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(annotation) for name, annotation in ANNOTATIONS.items()
}
_DEGREE = TypeAdapter[Any](Count)
# Of a user's own trainer: layers of a stage, and whether something counts as a layer.
_STAGE_SETTINGS: dict[str, TypeAdapter[Any]] = {
    **dict.fromkeys(GIVEN, TypeAdapter(Annotated[int, Field(ge=0)])),
    **dict.fromkeys(COUNTED, TypeAdapter(bool)),
    LAYOUT: TypeAdapter(str),
}
# A user's own trainer may mean something else by these; no built-in rule reads them.
_FREE = {
    *("recompute", "precision", "placement", "engine", "refresh_secondary", "reduce_precision"),
}


def build(
    name: str,
    spec: Any,
    document: Document,
    *,
    own_trainer: bool,
    is_axis: bool = False,
    points: int = FINEST,
) -> Parameter:
    """The parameter of a checked file; raises SpaceError at the value that is wrong.

    Args:
        name: of the parameter.
        spec: its values as the file has them.
        document: the file.
        own_trainer: a trainer of the user's may take any values.
        is_axis: it is a parallel axis that only that trainer knows: a degree.
        points: of the grid of a continuous parameter.
    """
    path: tuple[str | int, ...] = ("parameters", name)
    span = _span(spec, path, document, points) if isinstance(spec, (Float, Int)) else None
    ordered = isinstance(spec, Ordered) if isinstance(spec, (Ordered, Categories)) else None
    listed = path
    if span is not None:
        values: Sequence[Scalar] = span.grid
    elif isinstance(spec, Range):
        values = _range(spec, path, document)
    elif isinstance(spec, Log2):
        values = _log2(spec, path, document)
    elif isinstance(spec, Ordered):
        values, listed = spec.ordered, (*path, "ordered")
    elif isinstance(spec, Categories):
        values, listed = spec.categories, (*path, "categories")
    else:
        values = spec if isinstance(spec, list) else [spec]
    if len(values) > MAX_VALUES:
        raise document.error(
            path, f"found {len(values):,} values, accepted at most {MAX_VALUES:,}", at_value=True
        )
    adapter = None if own_trainer and name in _FREE else _TYPES.get(name)
    adapter = _STAGE_SETTINGS.get(name, adapter) if own_trainer else adapter
    adapter = _DEGREE if is_axis else adapter
    each = isinstance(spec, (list, Ordered, Categories))
    for index, value in enumerate(values):
        where = (*listed, index) if each else path
        _check(value, adapter, where, document)
    _check_together(values, listed, document)
    if any(isinstance(value, float) for value in values):
        values = [float(value) for value in values]
    return Parameter(name, tuple(values), span, ordered)


def is_flag(name: str) -> bool:
    """Whether a parameter of a user's own trainer may be true."""
    adapter = _STAGE_SETTINGS.get(name, None if name in _FREE else _TYPES.get(name))
    try:
        return adapter is None or adapter.validate_python(True, strict=True) is True
    except ValidationError:
        return False


def _span(spec: Float | Int, path: tuple[str | int, ...], document: Document, points: int) -> Span:
    low, high = spec.ends
    whole = isinstance(spec, Int)
    key = "int" if whole else "float"
    for index, end in enumerate(spec.ends):
        _check(end, None, (*path, key, index), document)
    if low >= high:
        raise document.error(
            (*path, key),
            f"found [{low}, {high}], accepted the lower end first"
            + ("" if low == high else f": [{high}, {low}]"),
            at_value=True,
        )
    if spec.log and low <= 0:
        raise document.error(
            (*path, key, 0), f"found {low}, accepted numbers above zero with log", at_value=True
        )
    if not whole:
        low, high = float(low), float(high)
    return Span(low, high, spec.log, whole, points)


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


def check_layouts(
    document: Document,
    own: Mapping[str, Parameter],
    written: Collection[str],
    num_layers: int | None,
) -> None:
    """Check the values of :data:`LAYOUT`, if a space has it.

    Args:
        document: where mistakes are shown.
        own: its parameters.
        written: those that it names itself; others are in its trainer's own arguments or file.
        num_layers: of its model, if it has one.

    Raises:
        SpaceError: at the first one that is no layout, or none of the model or of its pipelines.
    """
    parameter = own.get(LAYOUT)
    if parameter is None:
        return
    degrees = [own[name].values if name in own else (1,) for name in ("pp", "vpp")]
    products = sorted({int(pp) * int(vpp) for pp, vpp in product(*degrees)})
    for index, text in enumerate(parameter.values):
        problem = _problem(str(text), num_layers, products)
        if problem and parameter.name in written:
            listed = (index,) if len(parameter.values) > 1 else ()
            raise document.error(("parameters", parameter.name, *listed), problem, at_value=True)
        if problem:
            raise document.error(("trainer",), f"{LAYOUT}: {problem}")


def _problem(text: str, num_layers: int | None, products: list[int]) -> str | None:
    if text == NO_LAYOUT:
        return None
    try:
        layout = parsed_layout(text)
    except LayoutError as error:
        return str(error)
    if num_layers not in (None, layout.num_layers):
        return (
            f"found {as_written(text, 200)} with {layout.num_layers} t, accepted {num_layers}: "
            "one for each layer of the model (num_layers)"
        )
    stages = len(layout.chunks)
    if stages not in products:
        accepted = ", ".join(map(str, products[:20])) + (", ..." if products[20:] else "")
        return (
            f"found {as_written(text, 200)} with {stages} stages, accepted {accepted}: pp * vpp "
            "of this space; separate as many stages by |, or change pp or vpp"
        )
    return None
