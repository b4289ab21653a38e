"""Checking the values of a space file's parameters; deriving ``gas`` from a global batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from foundation.documents import Document, as_written
from foundation.records import wrong_value
from foundation.values import Number, Scalar
from search_spaces.language.schema import Categories, Float, Int, Log2, Ordered, Range, SpaceFile
from search_spaces.parameters import FINEST, Parameter, Span, value_type_of
from trainer.plan.annotations import Open, of_field
from trainer.plan.fields import Choices, OtherChoices
from trainer.plan.jobs import MODULES, NO_MODULES
from trainer.plan.layouts import NO_LAYOUT, LayoutError, parsed_layout
from trainer.plan.rules.expression import MAX_NUMBER
from trainer.plan.stages import LAYOUT

MAX_VALUES = 10_000
BATCH = "global_batch_size"
MOST_SIZES = 32  # each adds a comparison to the constraint
MOST_DIVISORS = 200

_DEGREE = TypeAdapter[Any](Annotated[int, Field(ge=1)])


def _adapter(field: FieldInfo) -> TypeAdapter[Any]:
    annotation: Any = Annotated[(field.annotation, None, *field.metadata)]
    return TypeAdapter(annotation)


def _adapters(*records: type[BaseModel], own_trainer: bool) -> dict[str, TypeAdapter[Any]]:
    """Checks of values, by parameter; no entry if a user's own trainer may have any value."""
    return {"num_nodes": _DEGREE} | {
        name: _adapter(field)
        for record in records
        for name, field in record.model_fields.items()
        if not (own_trainer and of_field(field, Open))
    }


_BUILTIN = _adapters(Choices, own_trainer=False)
_OTHERS = _adapters(Choices, OtherChoices, own_trainer=True)


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

    A user's own trainer may have any values; a parameter that ``is_axis`` is a degree that only
    that trainer knows. A continuous parameter's grid has ``points`` points.
    """
    place = _Place(document, ("parameters", name))
    span, ordered, above = None, None, tuple[str, ...]()  # above: the key over listed values
    values: Sequence[Scalar]
    match spec:
        case Float() | Int():
            span = place.span(spec, points)
            values = span.grid
        case Range():
            values = place.numbers(spec)
        case Log2():
            place.check_powers(spec)
            values = listed(spec)
        case Ordered():
            values, ordered, above = spec.ordered, True, ("ordered",)
        case Categories():
            values, ordered, above = spec.categories, False, ("categories",)
        case _:
            values = listed(spec)
    if len(values) > MAX_VALUES:
        raise place.error(f"found {len(values):,} values, accepted at most {MAX_VALUES:,}")
    adapter = _DEGREE if is_axis else (_OTHERS if own_trainer else _BUILTIN).get(name)
    checked = list[Scalar]()
    for index, value in enumerate(values):
        where: tuple[str | int, ...] = (*above, index) if above or isinstance(spec, list) else ()
        checked.append(place.check(value, adapter, *where))
    values = checked
    place.check_together(values, *above)
    if any(isinstance(value, float) for value in values):
        values = [float(value) for value in values]
    return Parameter(name, tuple(values), span, ordered)


def is_flag(name: str) -> bool:
    """Whether a parameter of a user's own trainer may be true."""
    adapter = _OTHERS.get(name)
    try:
        return adapter is None or adapter.validate_python(True, strict=True) is True
    except ValidationError:
        return False


@dataclass(frozen=True)
class _Place:
    """A parameter in a file; its methods check values, and raise SpaceError at the wrong one."""

    document: Document
    path: tuple[str, ...]

    def error(self, what: str, *steps: str | int) -> Exception:
        return self.document.wrong((*self.path, *steps), what)

    def check(self, value: Scalar, adapter: TypeAdapter[Any] | None, *steps: str | int) -> Scalar:
        """The value as a parameter has it: a fraction that is written 0 is 0.0."""
        found = f"found {as_written(value)}"
        if isinstance(value, (int, float)) and not abs(value) <= MAX_NUMBER:  # also refuses NaN
            raise self.error(f"{found}, accepted numbers up to 2^53", *steps)
        if adapter is None:
            return value
        try:
            typed: Scalar = adapter.validate_python(value, strict=True)
        except ValidationError as error:
            raise self.error(wrong_value(error.errors()[0]), *steps) from None
        # 1.0 and true equal a literal 1
        if type(typed) is not type(value) and (type(value), type(typed)) != (int, float):
            raise self.error(f"{found}, accepted a whole number", *steps)
        return typed

    def check_together(self, values: Sequence[Scalar], *steps: str) -> None:
        """Check that values have one type, and none is repeated."""
        seen: set[Scalar] = set()
        for index, value in enumerate(values):
            found = f"found {as_written(value)}"
            if value_type_of(value) != value_type_of(values[0]):
                raise self.error(
                    f"{found} among values such as {as_written(values[0])}, accepted values of one "
                    "type",
                    *steps,
                    index,
                )
            if value in seen:
                raise self.error(f"{found} twice, accepted once", *steps, index)
            seen.add(value)

    def check_ends(self, ends: Sequence[Number], key: str, *, equal: bool) -> None:
        """Check that the lower end is first; the ends may be the same if ``equal``."""
        low, high = ends
        if low > high or (low == high and not equal):
            turned = "" if low == high else f": [{high}, {low}]"
            raise self.error(f"found [{low}, {high}], accepted the lower end first{turned}", key)

    def span(self, spec: Float | Int, points: int) -> Span:
        low, high = spec.ends
        whole = isinstance(spec, Int)
        key = "int" if whole else "float"
        for index, end in enumerate(spec.ends):
            self.check(end, None, key, index)
        self.check_ends(spec.ends, key, equal=False)
        if spec.log and low <= 0:
            raise self.error(f"found {low}, accepted numbers above zero with log", key, 0)
        if not whole:
            low, high = float(low), float(high)
        return Span(low, high, spec.log, whole, points)

    def numbers(self, spec: Range) -> list[Number]:
        low, high = spec.range
        whole = isinstance(low, int) and isinstance(high, int)
        if spec.step is None and not whole:
            raise self.error("a range of fractions needs 'step'")
        step: Number = 1 if spec.step is None else spec.step
        if step <= 0:
            raise self.error(f"found {step}, accepted a step above zero", "step")
        self.check_ends(spec.range, "range", equal=True)
        for index, end in enumerate(spec.range):
            self.check(end, None, "range", index)
        # The tolerance lets [0.1, 0.3] with step 0.1 reach 0.3.
        steps = (high - low) / step + 1e-9
        if steps >= MAX_VALUES:
            raise self.error(f"found {steps:.3g} steps, accepted at most {MAX_VALUES:,} values")
        numbers = [low + i * step for i in range(math.floor(steps) + 1)]
        return numbers if whole and isinstance(step, int) else [round(n, 12) for n in numbers]

    def check_powers(self, spec: Log2) -> None:
        for index, end in enumerate(spec.log2):
            if end < 1 or end & (end - 1):
                what = f"found {end}, accepted powers of two: 1, 2, 4, 8, ..."
                raise self.error(what, "log2", index)
        self.check_ends(spec.log2, "log2", equal=True)


def check_texts(
    document: Document,
    own: Mapping[str, Parameter],
    written: Collection[str],
    num_layers: int | None,
) -> None:
    """Check the values of :data:`LAYOUT` and of the recomputed modules among a space's ``own``
    parameters.

    Parameters that are not ``written`` in it come from its trainer's own arguments or file.

    Raises SpaceError at the first that is no layout, or fits neither the model nor its pipelines,
    or that names another module than the cost model knows.
    """
    degrees = [own[name].values if name in own else (1,) for name in ("pp", "vpp")]
    products = sorted({int(pp) * int(vpp) for pp, vpp in product(*degrees)})
    for parameter in (own[name] for name in (LAYOUT, "recompute_modules") if name in own):
        for index, value in enumerate(parameter.values):
            text = str(value)
            if parameter.name == LAYOUT:
                problem = _problem(text, num_layers, products)
            else:
                problem = _unknown_module(text)
            if problem and parameter.name in written:
                listed = (index,) if len(parameter.values) > 1 else ()
                raise document.wrong(("parameters", parameter.name, *listed), problem)
            if problem:
                raise document.error(("trainer",), f"{parameter.name}: {problem}")


def _unknown_module(text: str) -> str | None:
    if text in (NO_MODULES, "") or {*text.split(",")} <= {*MODULES}:
        return None
    names = ", ".join(MODULES)
    return f"found {as_written(text, 200)}, accepted none, or some of {names}, such as mlp,moe_act"


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


def listed(spec: Any) -> list[Any]:
    """Whole numbers or listed values of a parameter that has not been checked yet."""
    if isinstance(spec, Ordered):
        return spec.ordered
    if isinstance(spec, Categories):
        return spec.categories
    if isinstance(spec, Log2):
        low, high = (end.bit_length() for end in spec.log2)
        return [1 << bit for bit in range(max(low - 1, 0), high)]
    if isinstance(spec, Range):
        numbers = [*spec.range, 1 if spec.step is None else spec.step]
        low, high, step = (number if isinstance(number, int) else 0 for number in numbers)
        return [*range(low, high + 1, step)[:MAX_VALUES]] if step > 0 else []
    return spec if isinstance(spec, list) else [spec]


def with_gas(
    document: Document, parameters: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Parameters with ``gas`` in place of ``global_batch_size``, and the constraint on the batch.

    ``gas`` gets every divisor of the sizes; the constraint leaves one of them per configuration.
    ``defaults`` are the trainer's own settings, which may fix ``mbs`` or ``gas``.

    Raises SpaceError if the sizes are no positive whole numbers, or there is no ``mbs``.
    """
    if BATCH not in parameters:
        return dict(parameters), []
    path = ("parameters", BATCH)
    sizes = listed(parameters[BATCH])
    if not 1 <= len(sizes) <= MOST_SIZES or any(type(s) is not int or s < 1 for s in sizes):
        raise document.wrong(
            path,
            f"found {as_written(parameters[BATCH])}, accepted up to {MOST_SIZES} positive whole "
            "numbers: sequences per step of the whole job",
        )
    if "mbs" not in parameters and "mbs" not in defaults:
        raise document.error(path, "needs mbs among the parameters: gas follows from both and dp")
    rest = {name: spec for name, spec in parameters.items() if name != BATCH}
    if "gas" not in defaults:
        every = sorted({*chain.from_iterable(map(divisors, sizes))})
        rest.setdefault("gas", every[:MOST_DIVISORS])
    return rest, [f"{BATCH} in {sizes}" if len(sizes) > 1 else f"{BATCH} == {sizes[0]}"]


def with_batch(document: Document, file: SpaceFile) -> SpaceFile:
    """The file with its global batch as ``gas`` and a constraint; raises SpaceError."""
    builtin = file.trainer.builtin
    fixed = builtin.model_dump() if builtin is not None else {}
    parameters, constraints = with_gas(document, file.parameters, fixed)
    changes = {"parameters": parameters, "constraints": [*file.constraints, *constraints]}
    return file.model_copy(update=changes) if constraints else file


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
