"""Valid configurations that have not been proposed yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from search_spaces.points.enumeration import ValidConfigs
from search_spaces.rules.rule import Rule
from search_spaces.space import SearchSpace
from trainer.plan.jobs import Indices

LISTED = 2_000_000  # up to so many valid configurations, all are listed once


class Candidates:
    """Draws from the valid configurations of a space by raw index, or from ``only`` the given."""

    def __init__(self, space: SearchSpace, only: Sequence[Mapping[str, Any]] | None = None) -> None:
        self.space = space
        self._names = list(space.parameters)
        self._parameters = list(space.parameters.values())
        self._radix = [len(parameter.values) for parameter in self._parameters]
        self._uneven = any(parameter.shares is not None for parameter in self._parameters)
        self._known: dict[tuple[tuple[str, Any], ...], int] = {}  # index by configuration
        self._listed: Indices | None = None
        if only is not None:
            self._listed = self.indices_of(only)
        else:
            self._valid = ValidConfigs(space)
            if self._valid.exact and self._valid.count <= LISTED:
                self._listed = self._valid.all()
        if self._listed is not None:
            self._listed_widths = self._widths(self._listed)

    def draw(
        self,
        size: int,
        rng: np.random.Generator,
        exclude: Iterable[Mapping[str, Any]],
        max_nodes: int,
    ) -> list[dict[str, Any]]:
        """Distinct valid raw configurations in random order; see ``indices``."""
        return self.configs(self.indices(size, rng, exclude, max_nodes))

    def indices(
        self,
        size: int,
        rng: np.random.Generator,
        exclude: Iterable[Mapping[str, Any]],
        max_nodes: int,
    ) -> Indices:
        """Distinct valid raw configurations in random order, by their index.

        Fewer than ``size`` are returned only if there are no more; in a space too large to be
        listed, a few may be missed.
        """
        known = self.indices_of(exclude)
        if self._listed is not None:
            pool, widths = self._listed, self._listed_widths
        else:
            drawn = size * (8 if self._uneven else 2)
            pool = self._valid.sample(drawn, rng)
            widths = self._widths(pool)
            if len(pool) and np.all(widths > max_nodes):
                pool = self._narrow(max_nodes).sample(drawn, rng)
                widths = self._widths(pool)
        order = self._shuffled(pool, np.flatnonzero(~np.isin(pool, known)), rng)
        chosen: Indices = pool[order[widths[order] <= max_nodes][:size]]
        return chosen

    def _shuffled(self, pool: Indices, places: Any, rng: np.random.Generator) -> Any:
        """Places in the pool in random order, weighted by the ``shares`` of continuous values."""
        if not self._uneven:
            return rng.permutation(places)
        digits = np.unravel_index(pool[places], self._radix)
        # The largest of log weights plus Gumbel noise is a weighted draw (Vieira 2014).
        keys = rng.gumbel(size=len(places))
        for parameter, column in zip(self._parameters, digits, strict=True):
            if parameter.shares is not None:
                keys += np.log(parameter.shares[column])
        return places[np.argsort(-keys, kind="stable")]

    def _narrow(self, max_nodes: int) -> ValidConfigs:
        """Valid configurations of at most ``max_nodes``, for a space where nearly all are wider."""
        width = Rule(
            "max_nodes",
            f"num_nodes <= {max_nodes}",
            frozenset(("num_nodes",)),
            lambda facts: facts.columns["num_nodes"] <= max_nodes,
        )
        return ValidConfigs(self.space, [*self.space.rules, width])

    def indices_of(self, configs: Iterable[Mapping[str, Any]]) -> Indices:
        """The indices of configurations, raw or canonical."""
        return np.array([self._index(config) for config in configs], dtype=np.int64)

    def configs(self, indices: Indices) -> list[dict[str, Any]]:
        """Raw configurations by index."""
        columns = [column.tolist() for column in self.columns(indices).values()]
        return [dict(zip(self._names, row, strict=True)) for row in zip(*columns, strict=True)]

    def columns(self, indices: Indices) -> dict[str, Any]:
        """Raw configurations by index, as one column per parameter."""
        return self.space.raw_columns(indices)

    def _widths(self, indices: Indices) -> Any:
        """Nodes of each configuration."""
        facts = self.space.columns(self.columns(indices)).columns
        return np.broadcast_to(facts["num_nodes"], indices.shape)

    def _index(self, config: Mapping[str, Any]) -> int:
        key = tuple(config.items())
        if key not in self._known:  # every draw passes the whole history
            raw = self.space.raw(config)
            digits = [p.place(raw[p.name]) for p in self._parameters]
            self._known[key] = int(np.ravel_multi_index(digits, self._radix))
        return self._known[key]
