"""Valid configurations that have not been proposed yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workflows.space import SearchSpace

ENUMERATED = 2_000_000  # raw configurations up to which all valid ones are listed once
CHUNK = 262_144
MAX_CHUNKS = 64  # tried in a space too large to list, before it counts as exhausted

Indices = NDArray[np.int64]


class Candidates:
    """Draws from the valid configurations of a space, by their index in the raw product.

    A raw index is a mixed-radix number: one digit per parameter, the last one fastest.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._names = list(space.parameters)
        self._values = [space.parameters[name].values for name in self._names]
        self._radix = [len(values) for values in self._values]
        self._listed: Indices | None = None
        if space.raw_size <= ENUMERATED:
            starts = range(0, space.raw_size, CHUNK)
            chunks = (np.arange(s, min(s + CHUNK, space.raw_size)) for s in starts)
            self._listed = np.concatenate([self._keep_valid(chunk) for chunk in chunks])

    def draw(
        self,
        size: int,
        rng: np.random.Generator,
        exclude: Iterable[Mapping[str, Any]],
        max_nodes: int,
    ) -> list[dict[str, Any]]:
        """At most ``size`` distinct valid raw configurations in random order.

        Args:
            size: how many at most; fewer come only where there are no more (exactly so in a space
                whose valid configurations are listed, nearly so in a larger one).
            rng: the source of the order.
            exclude: configurations that may not come again.
            max_nodes: the widest trial that may come, in nodes.
        """
        known = np.array([self._index(config) for config in exclude], dtype=np.int64)
        pool = self._listed if self._listed is not None else self._sample(2 * size, rng)
        pool = rng.permutation(pool[~np.isin(pool, known)])
        facts = self._space.columns(self._columns(pool)).columns
        fits = np.broadcast_to(facts["num_nodes"] <= max_nodes, pool.shape)
        return self._configs(pool[fits][:size])

    def _sample(self, size: int, rng: np.random.Generator) -> Indices:
        """About ``size`` valid indices by rejection; fewer where few are valid."""
        found: Indices = np.empty(0, dtype=np.int64)
        for _ in range(MAX_CHUNKS):
            found = np.union1d(
                found, self._keep_valid(rng.integers(self._space.raw_size, size=CHUNK))
            )
            if len(found) >= size:
                break
        return found

    def _keep_valid(self, indices: Indices) -> Indices:
        valid: NDArray[np.bool_] = self._space.valid(self._columns(indices))
        return indices[valid]

    def _columns(self, indices: Indices) -> dict[str, NDArray[Any]]:
        digits = np.unravel_index(indices, self._radix)
        return {
            name: np.array(values)[digit]
            for name, values, digit in zip(self._names, self._values, digits, strict=True)
        }

    def _configs(self, indices: Indices) -> list[dict[str, Any]]:
        columns = [column.tolist() for column in self._columns(indices).values()]
        return [dict(zip(self._names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _index(self, config: Mapping[str, Any]) -> int:
        raw = self._space.raw(config)
        digits = [
            values.index(raw[name]) for name, values in zip(self._names, self._values, strict=True)
        ]
        return int(np.ravel_multi_index(digits, self._radix))
