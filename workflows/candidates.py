"""Valid configurations that have not been proposed yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

    Args:
        space: whose.
        only: the configurations there are; default all valid ones.
    """

    def __init__(self, space: SearchSpace, only: Sequence[Mapping[str, Any]] | None = None) -> None:
        self._space = space
        self._names = list(space.parameters)
        self._values = [space.parameters[name].values for name in self._names]
        self._radix = [len(values) for values in self._values]
        self._known: dict[tuple[tuple[str, Any], ...], int] = {}  # indices of what was asked about
        self._listed: Indices | None = None
        if only is not None:
            self._listed = self.indices_of(only)
            self._listed_widths = self._widths(self._listed)
        elif space.raw_size <= ENUMERATED:
            starts = range(0, space.raw_size, CHUNK)
            chunks = (np.arange(s, min(s + CHUNK, space.raw_size)) for s in starts)
            self._listed = np.concatenate([self._keep_valid(chunk) for chunk in chunks])
            self._listed_widths = self._widths(self._listed)

    def draw(
        self,
        size: int,
        rng: np.random.Generator,
        exclude: Iterable[Mapping[str, Any]],
        max_nodes: int,
    ) -> list[dict[str, Any]]:
        """At most ``size`` distinct valid raw configurations in random order; see ``indices``."""
        return self.configs(self.indices(size, rng, exclude, max_nodes))

    def indices(
        self,
        size: int,
        rng: np.random.Generator,
        exclude: Iterable[Mapping[str, Any]],
        max_nodes: int,
    ) -> Indices:
        """At most ``size`` distinct valid raw configurations in random order, by their index.

        Args:
            size: how many at most; fewer come only where there are no more (exactly so in a space
                whose valid configurations are listed, nearly so in a larger one).
            rng: the source of the order.
            exclude: configurations that may not come again.
            max_nodes: the widest trial that may come, in nodes.
        """
        known = self.indices_of(exclude)
        if self._listed is not None:
            pool, widths = self._listed, self._listed_widths
        else:
            pool = self._sample(2 * size, rng)
            widths = self._widths(pool)
        order = rng.permutation(np.flatnonzero(~np.isin(pool, known)))
        chosen: Indices = pool[order[widths[order] <= max_nodes][:size]]
        return chosen

    def indices_of(self, configs: Iterable[Mapping[str, Any]]) -> Indices:
        """The indices of configurations, raw or canonical."""
        return np.array([self._index(config) for config in configs], dtype=np.int64)

    def configs(self, indices: Indices) -> list[dict[str, Any]]:
        """The raw configurations of these indices."""
        columns = [column.tolist() for column in self.columns(indices).values()]
        return [dict(zip(self._names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _widths(self, indices: Indices) -> NDArray[Any]:
        """Nodes that each needs."""
        facts = self._space.columns(self.columns(indices)).columns
        return np.broadcast_to(facts["num_nodes"], indices.shape)

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
        valid: NDArray[np.bool_] = self._space.valid(self.columns(indices))
        return indices[valid]

    def columns(self, indices: Indices) -> dict[str, NDArray[Any]]:
        """The raw configurations of these indices, as one column per parameter."""
        digits = np.unravel_index(indices, self._radix)
        return {
            name: np.array(values)[digit]
            for name, values, digit in zip(self._names, self._values, digits, strict=True)
        }

    def _index(self, config: Mapping[str, Any]) -> int:
        key = tuple(config.items())
        if key not in self._known:  # the whole history comes with every draw
            raw = self._space.raw(config)
            digits = [
                values.index(raw[name])
                for name, values in zip(self._names, self._values, strict=True)
            ]
            self._known[key] = int(np.ravel_multi_index(digits, self._radix))
        return self._known[key]
