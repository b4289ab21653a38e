"""Valid configurations that have not been proposed yet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workflows.space import SearchSpace

ENUMERATED = 2_000_000  # raw configurations up to which all valid ones are listed once
CHUNK = 262_144


class Candidates:
    """Draws from the valid configurations of a space, by their index in the raw product.

    A raw index is a mixed-radix number: one digit per parameter, the last one fastest.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._names = list(space.parameters)
        self._values = [space.parameters[name].values for name in self._names]
        self._radix = [len(values) for values in self._values]
        self._raw = math.prod(self._radix)
        self._valid: NDArray[np.int64] | None = None
        if self._raw <= ENUMERATED:
            starts = range(0, self._raw, CHUNK)
            chunks = [np.arange(s, min(s + CHUNK, self._raw)) for s in starts]
            self._valid = np.concatenate([self._keep_valid(chunk) for chunk in chunks])

    def draw(
        self,
        size: int,
        rng: np.random.Generator,
        exclude: Iterable[Mapping[str, Any]],
        max_nodes: int,
    ) -> list[dict[str, Any]]:
        """At most ``size`` distinct valid configurations in random order.

        Args:
            size: how many at most; fewer come only where there are no more (exactly so in a space
                whose valid configurations are listed, nearly so in a larger one).
            rng: the source of the order.
            exclude: configurations that may not come again.
            max_nodes: the widest trial that may come, in nodes.
        """
        known = np.array(sorted(self._index(config) for config in exclude), dtype=np.int64)
        pool = self._valid if self._valid is not None else self._sample(2 * size, rng)
        pool = pool[~np.isin(pool, known)]
        pool = rng.permutation(pool)
        configs = (self._config(index) for index in pool)
        fitting = (c for c in configs if self._space.num_nodes(c) <= max_nodes)
        return [c for _, c in zip(range(size), fitting, strict=False)]

    def _sample(self, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """About ``size`` valid indices by rejection; fewer where few are valid."""
        found: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        for _ in range(64):
            chunk = rng.integers(0, self._raw, size=CHUNK)
            found = np.union1d(found, self._keep_valid(chunk))
            if len(found) >= size:
                break
        return found

    def _keep_valid(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        digits = np.unravel_index(indices, self._radix)
        columns = {
            name: np.array(values)[digit]
            for name, values, digit in zip(self._names, self._values, digits, strict=True)
        }
        return indices[self._space.valid(columns)]

    def _config(self, index: int) -> dict[str, Any]:
        digits = np.unravel_index(index, self._radix)
        raw = {
            name: values[int(digit)]
            for name, values, digit in zip(self._names, self._values, digits, strict=True)
        }
        return self._space.canonical(raw)

    def _index(self, config: Mapping[str, Any]) -> int:
        raw = self._space.raw(config)
        digits = [
            values.index(raw[name]) for name, values in zip(self._names, self._values, strict=True)
        ]
        return int(np.ravel_multi_index(digits, self._radix))
