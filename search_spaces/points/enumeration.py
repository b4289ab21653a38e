"""Valid configurations of a space, counted and drawn without trying all raw ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.parameters import Parameter
from search_spaces.rules.rule import Rule
from search_spaces.space import SearchSpace
from trainer.plan.jobs import Indices

MAX_EDGES = 1 << 21  # edges tried for one parameter; beyond, remaining parameters are sampled
MAX_WORK = 1e7  # terms of rules evaluated, over all configurations; about 0.3 s
_SORTING = 5.0  # cost of sorting one edge, in terms of rules
CHUNK = 1 << 19  # configurations evaluated at once
MAX_DRAWS = 32  # random chunks, after which a sample may be smaller than requested
ESTIMATED = 4  # random chunks behind an estimate

Digits = Mapping[str, NDArray[Any]]
_Scoped = tuple[Rule, frozenset[str]]  # a rule, and the parameters that it reads


@dataclass(frozen=True)
class _Level:
    """One bound parameter.

    An edge leads from a state before the parameter, by one of its values, to a state after it.
    Edges are sorted by the state that they lead to.
    """

    stride: int  # place value of the parameter's digit in a raw index
    digits: NDArray[Any]  # the value of each edge
    before: NDArray[Any]  # the state that each edge comes from
    ends: Indices  # assignments up to and including each edge, cumulated
    starts: Indices  # assignments before the first edge into each state, cumulated


class ValidConfigs:
    """Valid configurations by their raw index.

    Parameters are bound one after the other, and a rule is evaluated as soon as all parameters
    that it reads are bound. A state keeps only the bound values that a later rule reads, and
    counts the assignments that lead to it: variable elimination, as in graphical models. The count
    is therefore exact, and every number below it stands for one valid configuration. If a
    parameter has too many states before it, it and the remaining ones are sampled, and samples
    that break a rule are rejected.

    Args:
        rules: rules to satisfy; default all of the space.
        max_edges: most values of one parameter, over all states before it, to try.
        max_work: most terms of rules to evaluate while binding parameters.

    Attributes:
        work: terms of rules that were evaluated.
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
            (rule, frozenset().union(*(space.reads[name] for name in rule.names)))
            for rule in (space.rules if rules is None else rules)
        ]
        self._order = _order(self._parameters, [scope for _, scope in waiting])
        sizes = [len(p.values) for p in self._parameters.values()]
        strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
        self._strides = dict(zip(self._parameters, strides, strict=True))
        self._levels: list[_Level] = []
        cost = sum(terms(rule) for rule, _ in waiting)
        self._chunk = min(CHUNK, affordable(cost * ESTIMATED))
        self._bind(waiting, max_edges, max_work)

    @property
    def exact(self) -> bool:
        """Whether every parameter is bound, so that nothing is sampled."""
        return len(self._levels) == len(self._order)

    @property
    def count(self) -> int:
        """Number of valid configurations; an upper bound unless exact."""
        left = self._order[len(self._levels) :]
        return self._ways * math.prod(len(self._parameters[name].values) for name in left)

    def estimate(self, rng: np.random.Generator) -> float:
        """The count; unless exact, an estimate from random configurations."""
        if self.exact or not self.count:
            return self.count
        found = sum(len(self._drawn(self._chunk, rng)) for _ in range(ESTIMATED))
        return self.count * found / (ESTIMATED * self._chunk)

    def all(self) -> Indices:
        """Every valid index, in order; raises ValueError if not all parameters are bound."""
        if not self.exact:
            raise ValueError("the valid configurations of this space cannot be listed")
        starts = range(0, self._ways, CHUNK)
        chunks = [self._at(np.arange(s, min(s + CHUNK, self._ways))) for s in starts]
        return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *chunks]))

    def sample(self, size: int, rng: np.random.Generator) -> Indices:
        """Distinct valid indices, ascending, drawn uniformly: ``size``, or as many as are found."""
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
        """Valid indices among ``size`` random ones; all are if every parameter is bound."""
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
        """Bound parameters' part of the raw index of assignments, given by their numbers."""
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
            ready = sum(terms(rule) for rule, scope in waiting if scope <= bound)
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
            live = set().union(*(scope for _, scope in waiting))
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
        """Valid edges out of some states: the state and the digit of each."""
        size = len(self._parameters[name].values)
        before = np.repeat(some.astype(np.int32), size)
        digits = np.tile(np.arange(size, dtype=np.int16), len(some))
        edges = {own: column[before] for own, column in states.items()} | {name: digits}
        kept = self._fulfilled(waiting, edges, len(before))
        return before[kept], digits[kept]

    def _level(
        self, name: str, before: NDArray[Any], digits: NDArray[Any], edges: Digits, ways: Indices
    ) -> tuple[_Level, Digits]:
        """The level, and the states after it; edges with equal kept values lead to one state."""
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
        """Mask of rows that satisfy all rules whose parameters are bound; others take any value."""
        ready = [(rule, scope) for rule, scope in waiting if scope <= digits.keys()]
        read = set().union(*(scope for _, scope in ready))
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


def terms(rule: Rule) -> float:
    """Cost of evaluating a rule on one configuration, estimated from the length of its text."""
    return 1 + len(rule.text) / 10


def affordable(terms: float) -> int:
    """Configurations on which rules with these ``terms`` can be evaluated within ``MAX_WORK``."""
    return max(4096, int(MAX_WORK / max(terms, 1)))


def _later(waiting: Sequence[_Scoped], bound: Iterable[str]) -> list[_Scoped]:
    """Rules that read parameters besides the ``bound`` ones."""
    return [(rule, scope) for rule, scope in waiting if not scope <= {*bound}]


def _order(parameters: Mapping[str, Parameter], scopes: Sequence[frozenset[str]]) -> list[str]:
    """Parameters in a greedy order: each time the one that leaves the fewest states."""
    order: list[str] = []

    def kept(name: str) -> tuple[int, int]:
        bound = {*order, name}
        asked_later = [scope for scope in scopes if not scope <= bound]
        live = bound & frozenset().union(*asked_later)
        return math.prod(len(parameters[n].values) for n in live), len(asked_later)

    while len(order) < len(parameters):
        order.append(min((n for n in parameters if n not in order), key=kept))
    return order
