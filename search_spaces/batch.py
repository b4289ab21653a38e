"""The global batch as a parameter: ``gas`` follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

from foundation.documents import Document, as_written
from search_spaces.language.schema import SpaceFile
from search_spaces.parameter_values import listed

BATCH = "global_batch_size"
MOST_SIZES = 32  # each is a comparison in the constraint
MOST_DIVISORS = 200


def with_gas(
    document: Document, parameters: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Parameters with ``gas`` in place of ``global_batch_size``, and the constraint on the batch.

    ``gas`` gets every divisor of the sizes, of which the constraint leaves one per configuration.

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
