"""The valid configurations of a space, counted and drawn without trying all raw ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.parameters import Parameter
from search_spaces.rules.rule import Rule
from search_spaces.space import SearchSpace

MAX_EDGES = 1 << 21  # tried for one parameter; beyond it, what is left is drawn by chance
MAX_WORK = 1e7  # in terms of rules, over all configurations that they are asked about; about 0.3 s
_SORTING = 5.0  # of an edge, in terms of rules
CHUNK = 1 << 19  # of them at once
MAX_DRAWS = 32  # chunks drawn by chance, before what they found is all that is given
ESTIMATED = 4  # chunks that an estimate is from

Indices = NDArray[np.int64]
Digits = Mapping[str, NDArray[Any]]
_Scoped = tuple[Rule, frozenset[str]]  # and the parameters that it reads


@dataclass(frozen=True)
class _Level:
    """One parameter, bound after others.

    An edge leads from a state before the parameter, by one of its values, to a state after it.
    Edges are ordered by the state that they lead to.

    Attributes:
        stride: of the parameter's digit in a raw index.
        digits: of each edge: which value.
        before: of each edge: the state that it comes from.
        ends: of each edge: ways to it and to all edges ahead of it.
        starts: of each state: ways to the states ahead of it.
    """

    stride: int
    digits: NDArray[Any]
    before: NDArray[Any]
    ends: Indices
    starts: Indices


class ValidConfigs:
    """Valid configurations by their raw index.

    Parameters are bound one after the other, and a rule is asked as soon as all that it reads is
    bound. Of what is bound only that is kept which a later rule reads (a state), with the number
    of ways in which it came about: variable elimination, as in graphical models. So the count is
    exact, and every number below it stands for one valid configuration. If a parameter has too
    many states before it, it and those after it are drawn by chance, and what breaks a rule is
    thrown away.

    Args:
        space: whose.
        rules: default: all of them.
        max_edges: values of a parameter, over all states before it, that are tried at most.
        max_work: of all parameters that are bound, in terms of rules.

    Attributes:
        work: that it took.
    """

    def __init__(
        self,
        space: SearchSpace,
        rules: Sequence[Rule] | None = None,
        max_edges: int = MAX_EDGES,
        max_work: float = MAX_WORK,
    ) -> None:
        self.work = 0.0
        self._space = space
        self._parameters = space.parameters
        waiting = [
            (rule, _union(space.reads[name] for name in rule.names))
            for rule in (space.rules if rules is None else rules)
        ]
        self._order = _order(self._parameters, [scope for _, scope in waiting])
        sizes = [len(p.values) for p in self._parameters.values()]
        strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
        self._strides = dict(zip(self._parameters, strides, strict=True))
        self._levels: list[_Level] = []
        terms = sum(_terms(rule) for rule, _ in waiting)
        self._chunk = min(CHUNK, affordable(terms * ESTIMATED))
        self._bind(waiting, max_edges, max_work)

    @property
    def exact(self) -> bool:
        """Whether every parameter is bound: nothing is left to chance."""
        return len(self._levels) == len(self._order)

    @property
    def count(self) -> int:
        """Valid configurations; an upper bound where it is not exact."""
        left = self._order[len(self._levels) :]
        return self._ways * math.prod(len(self._parameters[name].values) for name in left)

    def estimate(self, rng: np.random.Generator) -> float:
        """The count where it is exact, else from what random configurations come to."""
        if self.exact or not self.count:
            return self.count
        found = sum(len(self._drawn(self._chunk, rng)) for _ in range(ESTIMATED))
        return self.count * found / (ESTIMATED * self._chunk)

    def all(self) -> Indices:
        """Every valid index, in order.

        Raises:
            ValueError: if not all parameters are bound.
        """
        if not self.exact:
            raise ValueError("the valid configurations of this space cannot be listed")
        starts = range(0, self._ways, CHUNK)
        chunks = [self._at(np.arange(s, min(s + CHUNK, self._ways))) for s in starts]
        return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *chunks]))

    def sample(self, size: int, rng: np.random.Generator) -> Indices:
        """At most ``size`` distinct valid indices, in order; each is as likely as any other.

        Args:
            size: how many; fewer come where no more are found.
            rng: the source of chance.
        """
        most = min(size, self.count)
        if self.exact and self.count < 2 * most:
            return np.sort(rng.permutation(self.all())[:most])
        found: Indices = np.empty(0, dtype=np.int64)
        for _ in range(MAX_DRAWS):
            if len(found) >= most:
                break
            drawn = self._drawn(most if self.exact else self._chunk, rng)
            found = np.sort(np.concatenate([found, drawn]))  # np.unique's hashes take longer
            found = found[np.diff(found, prepend=-1) > 0]
        some: Indices = np.sort(rng.permutation(found)[:size])
        return some

    def _drawn(self, size: int, rng: np.random.Generator) -> Indices:
        """Valid indices among ``size`` random ones; all where every parameter is bound."""
        indices = self._at(rng.integers(self._ways, size=size))
        bound = self._order[: len(self._levels)]
        digits = {
            own: indices // self._strides[own] % len(self._parameters[own].values) for own in bound
        }
        waiting = self._waiting
        for name in self._order[len(bound) :]:
            digits[name] = rng.integers(len(self._parameters[name].values), size=len(indices))
            indices = indices + self._strides[name] * digits[name]
            kept = self._fulfilled(waiting, digits, len(indices))
            indices = indices[kept]
            digits = {own: column[kept] for own, column in digits.items()}
            waiting = _later(waiting, digits)
        return indices

    def _at(self, ways: Indices) -> Indices:
        """What the bound parameters add to the raw index, for ways from 0 to their number."""
        indices = np.zeros(len(ways), dtype=np.int64)
        for number, level in reversed(list(enumerate(self._levels))):
            edges = np.searchsorted(level.ends, ways, side="right")
            indices += level.stride * level.digits[edges].astype(np.int64)
            if number:
                within = ways - np.where(edges > 0, level.ends[edges - 1], 0)
                ways = within + self._levels[number - 1].starts[level.before[edges]]
        return indices

    def _bind(self, waiting: Sequence[_Scoped], max_edges: int, max_work: float) -> None:
        ways: Indices = np.ones(1, dtype=np.int64)[self._fulfilled(waiting, {}, 1)]
        waiting = _later(waiting, {})
        states: Digits = {}
        for name in self._order:
            size = len(self._parameters[name].values)
            bound = {name, *states}
            ready = sum(_terms(rule) for rule, scope in waiting if scope <= bound)
            work = len(ways) * size * (_SORTING + ready)
            if len(ways) * size > max_edges or self.work + work > max_work:
                break
            self.work += work
            step = max(1, CHUNK // size)
            parts = [
                self._edges(name, states, np.arange(at, min(at + step, len(ways))), waiting)
                for at in range(0, max(len(ways), 1), step)
            ]
            before, digits = (np.concatenate(columns) for columns in zip(*parts, strict=True))
            waiting = _later(waiting, [name, *states])
            live = _union(scope for _, scope in waiting)
            edges = {own: column[before] for own, column in states.items()} | {name: digits}
            edges = {own: column for own, column in edges.items() if own in live}
            level, states = self._level(name, before, digits, edges, ways)
            ways = np.diff(level.starts, append=level.ends[-1:])
            self._levels.append(level)
        self._waiting = waiting
        self._ways = int(ways.sum())

    def _edges(
        self, name: str, states: Digits, some: NDArray[Any], waiting: Sequence[_Scoped]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """State and digit of the valid edges out of some states."""
        size = len(self._parameters[name].values)
        before = np.repeat(some.astype(np.int32), size)
        digits = np.tile(np.arange(size, dtype=np.int16), len(some))
        edges = {own: column[before] for own, column in states.items()} | {name: digits}
        kept = self._fulfilled(waiting, edges, len(before))
        return before[kept], digits[kept]

    def _level(
        self,
        name: str,
        before: NDArray[Any],
        digits: NDArray[Any],
        edges: Digits,
        ways: Indices,
    ) -> tuple[_Level, Digits]:
        """The level, and the states after it: edges alike in all that is kept lead to one."""
        key = np.zeros(len(digits), dtype=np.int64)
        for own, column in edges.items():
            key = key * len(self._parameters[own].values) + column
        order = np.argsort(key, kind="stable")
        first = np.flatnonzero(np.diff(key[order], prepend=-1))
        ends = np.cumsum(ways[before[order]])
        starts = np.where(first > 0, ends[first - 1], 0)
        level = _Level(self._strides[name], digits[order], before[order], ends, starts)
        return level, {own: column[order[first]] for own, column in edges.items()}

    def _fulfilled(
        self, waiting: Sequence[_Scoped], digits: Digits, count: int
    ) -> NDArray[np.bool_]:
        """Where all rules hold that read no more than these; what they do not read is any value."""
        ready = [(rule, scope) for rule, scope in waiting if scope <= digits.keys()]
        read = _union(scope for _, scope in ready)
        kept = np.ones(count, dtype=bool)
        if ready:
            raw = {
                name: p.array[digits[name]] if name in read else p.array[0]
                for name, p in self._parameters.items()
            }
            facts = self._space.columns(raw)
            for rule, _ in ready:
                kept &= rule.holds(facts)
        return kept


def _terms(rule: Rule) -> float:
    """What asking a rule costs, by the length of its text."""
    return 1 + len(rule.text) / 10


def affordable(terms: float) -> int:
    """Configurations about which rules of so many terms may be asked."""
    return max(4096, int(MAX_WORK / max(terms, 1)))


def _later(waiting: Sequence[_Scoped], bound: Iterable[str]) -> list[_Scoped]:
    """The rules that read more than this."""
    return [(rule, scope) for rule, scope in waiting if not scope <= {*bound}]


def _order(parameters: Mapping[str, Parameter], scopes: Sequence[frozenset[str]]) -> list[str]:
    """Parameters in the order in which the fewest combinations have to be kept, step by step."""
    order: list[str] = []

    def kept(name: str) -> tuple[int, int]:
        bound = {*order, name}
        asked_later = [scope for scope in scopes if not scope <= bound]
        live = bound & _union(asked_later)
        return math.prod(len(parameters[n].values) for n in live), len(asked_later)

    while len(order) < len(parameters):
        order.append(min((n for n in parameters if n not in order), key=kept))
    return order


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return reduce(frozenset.union, sets, frozenset())
