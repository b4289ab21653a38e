"""Habits of frameworks as hypotheses, weighted by the memory and the times of trials.

Habits such as the format of gradients, copies of the logits, or what recomputation keeps are facts
of a framework's record. Without a record, or where the program in use differs from it, they are
inferred from trials. A hypothesis is the framework's own record or another's, in which any habit
may be changed. There are too many to enumerate: Gibbs sampling finds the probable ones, one habit
at a time given all others (Geman and Geman 1984).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin

import numpy as np

from search_spaces import FRAMEWORKS, Framework
from trainer.plan.jobs import Array

NAMED = 0.9  # prior of a framework's own record, where it has one; all others share the rest
CHANGED = 0.03  # probability that a habit differs from the framework's own record
CHANGED_ELSEWHERE = 0.1  # likewise from another framework's record
NEXT = 0.25  # probability that a changed habit has a value that is in no record
SWEEPS = 2  # of Gibbs sampling over all habits, from the record that explains the evidence best
NOTHING = 1e-3  # differences in log evidence below this do not count
HARDLY = 1e-3  # hypotheses with less weight are left out
LIKELIEST, DRAWN = 8, 8  # hypotheses that are kept: the most probable, and draws from the others
PLAUSIBLE = 0.01  # least probability, relative to the best hypothesis; one failure alone costs less

T = TypeVar("T")

ALTERNATIVES: dict[str, tuple[Any, ...]] = {
    "master_bytes": (0.0, 2.0),
    "moment_bytes": (2.0,),
    "logits_bytes": (4.0,),
}
"""Values that programs have, but no record yet."""

# The probability of a newer value, that value, and the comparison that tells an older one.
Newer = tuple[float, Any, Callable[[Any, Any], bool]]
SINCE_THEN: dict[str, Newer] = {
    "flash_attention": (0.7, True, operator.lt),
    "logits_bytes": (0.5, 4.0, operator.gt),
}
"""Habits that fused kernels have changed since most records were written. A fused loss keeps a
logit and its gradient in 16 bits (FlashAttention's and Liger's); records state the defaults."""
MAY_HAVE: dict[str, Newer] = {
    "fused_layers": (0.5, True, operator.lt),
    "expandable_segments": (0.5, True, operator.lt),
    "moment_bytes": (0.5, 2.0, operator.gt),
}
"""Likewise for habits known only from vendors' recipes or options of their optimizers: even odds
where jobs are ruled out. A search that expected them would try more jobs that do not fit.
"""

TIMING = frozenset(
    {
        *("overlaps_gradients", "overlaps_split_gradients", "overlaps_publish", "overlaps_tensor"),
        *("gradients_synced_per_micro_batch", "repeated_sums", "one_adapter", "sends_tokens_once"),
        *("reduce_bytes", "name"),
    }
)
"""Habits inferred from step times; ``name`` is the record whose constants of time apply."""
MEMORY = (
    frozenset(Framework.model_fields)
    - (TIMING - {"reduce_bytes"})
    - {"split", "counts_ends", "stage_settings", "fills_pipeline", "fp8_copy_bytes", "own_kernels"}
    - {"stashed_layers", "adapter_bytes", "quantized_bytes", "unquantized_bytes", "compiled_layers"}
    - {"tensor_splits_states", "expandable_segments", "reduced_apart"}
    - {"source", "choices", "fitted_as", "fine_tunes", "stated"}
)
"""Habits inferred from memory; the others are known from the job, its log or its errors."""


@dataclass(frozen=True)
class Hypothesis(Generic[T]):
    """Habits that a framework may have, their probability, and ``rest``: constants with them."""

    framework: Framework
    weight: float
    rest: T


Key = tuple[int, ...]  # A hypothesis: the index of each habit's value


@dataclass(frozen=True)
class Doubts:
    """Prior probability of the habits of a framework."""

    named: Framework  # its record, or most frameworks' habits; ``stated`` habits are certain
    names: frozenset[str] = MEMORY  # of the habits that are in doubt
    cautious: bool = False  # whether habits in MAY_HAVE have even odds

    def for_ruling_out(self) -> Doubts:
        """The prior for ruling jobs out: rare habits that would let a job fit are possible."""
        return replace(self, names=self.names | MAY_HAVE.keys(), cautious=True)

    @property
    def _since_then(self) -> dict[str, Newer]:
        return SINCE_THEN | MAY_HAVE if self.cautious else SINCE_THEN

    @cached_property
    def values(self) -> dict[str, tuple[Any, ...]]:
        """Values that each doubted habit may have, the framework's own first."""
        found = {}
        for name, field in Framework.model_fields.items():
            if name not in self.names or name in self.named.stated:
                continue
            own, records = getattr(self.named, name), self._others
            others = [getattr(one, name) for one in records] + [*ALTERNATIVES.get(name, ())]
            if get_origin(field.annotation) is Literal:
                others += get_args(field.annotation)
            others += [True, False] if field.annotation is bool else []
            if len(every := tuple(dict.fromkeys([own, *others]))) > 1:
                found[name] = every
        return found

    @cached_property
    def records(self) -> tuple[Key, ...]:
        """The records that the framework may resemble, its own first."""
        return tuple(
            tuple(every.index(getattr(one, name)) for name, every in self.values.items())
            for one in [self.named, *self._others]
        )

    def _renewed(self, key: Key, names: Collection[str]) -> Key:
        """A hypothesis whose older values of these habits are replaced by the newer ones."""
        new = list(key)
        for at, (name, every) in enumerate(self.values.items()):
            _, now, older = self._since_then.get(name, (0.0, None, operator.is_))
            if name in names and older(every[key[at]], now):
                new[at] = every.index(now)
        return tuple(new)

    @property
    def _others(self) -> list[Framework]:
        name, tunes = self.named.name, self.named.fine_tunes
        every = FRAMEWORKS.values()
        return [one for one in every if one.name != name and (tunes or not one.fine_tunes)]

    @cached_property
    def _shares(self) -> Array:
        """Prior of each record; shape (r,)."""
        others = len(self.records) - 1
        own = NAMED if self.named.name in FRAMEWORKS else 1 / (others + 1)
        return np.array([own] + [(1 - own) / others] * others)

    @cached_property
    def _logs(self) -> list[Array]:
        """Log prior of each habit's values, given the record it resembles; (r, values) each."""
        keys, known = np.array(self.records), self.named.name in FRAMEWORKS
        found = []
        for column, (name, every) in zip(keys.T, self.values.items(), strict=True):
            seen = np.bincount(column, minlength=len(every)).astype(float)
            usual = np.where(
                seen > 0, (1 - NEXT) * seen / seen.sum(), NEXT / max((seen == 0).sum(), 1)
            )
            changed = np.full((len(keys), 1), CHANGED_ELSEWHERE)
            if name in self._since_then:
                share, now, older = self._since_then[name]
                changed[np.array([older(value, now) for value in every])[column]] = share
                usual = 0.1 * usual + 0.9 * np.array([float(value == now) for value in every])
            changed[: 1 * known] = CHANGED
            table = changed * usual / usual.sum()
            table[np.arange(len(keys)), column] += 1 - changed[:, 0]
            found.append(np.log(np.maximum(table, 1e-4)))
        return found

    def log_prior(self, key: Key) -> float:
        """Log prior of a hypothesis, marginalized over the record that it resembles."""
        logs = np.log(self._shares)
        for table, value in zip(self._logs, key, strict=True):
            logs = logs + table[:, value]
        return float(np.logaddexp.reduce(logs))

    def framework(self, key: Key) -> Framework:
        """The named framework with the habits of a hypothesis."""
        habits = zip(self.values.items(), key, strict=True)
        return self.named.with_habits(**{name: every[i] for (name, every), i in habits})

    def weighed(
        self, evidence: Callable[[Framework], tuple[float, T]]
    ) -> tuple[Hypothesis[T], ...]:
        """A handful of hypotheses after evidence, the most probable first; weights sum to 1.

        If ``cautious``, every plausible one among the most probable, the records, and both with
        newer values of their habits.

        Args:
            evidence: log likelihood of the measurements under given habits, and ``rest``, such as
                the constants under them. Habits that make no difference are found and then no
                longer varied.
        """
        answers: dict[Key, tuple[float, T]] = {}
        known: dict[Key, float] = {}  # log posterior of each hypothesis that was visited
        idle: set[int] = set()  # habits that make no difference

        def answer(key: Key) -> tuple[float, T]:
            key = tuple(0 if at in idle else value for at, value in enumerate(key))
            if key not in answers:
                answers[key] = evidence(self.framework(key))
            return answers[key]

        def score(key: Key) -> float:
            known[key] = self.log_prior(key) + answer(key)[0]
            return known[key]

        rng = np.random.default_rng(0)
        renewed = [self._renewed(one, self._since_then) for one in self.records]
        key = max([*self.records, *renewed], key=score)
        sizes = [len(every) for every in self.values.values()]
        for _ in range(SWEEPS):
            for at in rng.permutation(len(key)):
                every = [(*key[:at], value, *key[at + 1 :]) for value in range(sizes[at])]
                if np.ptp([answer(one)[0] for one in every]) < NOTHING:
                    idle.add(int(at))
                key = every[rng.choice(len(every), p=_weights([score(one) for one in every]))]
        keys = sorted(known, key=lambda key: -known[key])
        if self.cautious:
            found = [*keys[:LIKELIEST], *self.records]
            found += [self._renewed(key, self._since_then) for key in found]
            found += [self._renewed(keys[0], {name}) for name in self._since_then]
            keys = [*dict.fromkeys(found)]
            weights = _weights([score(key) for key in keys])
            order = np.argsort(-weights, kind="stable").tolist()
            kept = [(i, weights[i]) for i in order if weights[i] >= PLAUSIBLE * weights.max()]
        else:
            kept = _handful(_weights([known[key] for key in keys]), rng)
        return tuple(
            Hypothesis(self.framework(keys[i]), weight, answer(keys[i])[1]) for i, weight in kept
        )


def _weights(logs: Sequence[float]) -> Array:
    weights = np.exp(np.array(logs) - max(logs))
    return np.asarray(weights / weights.sum())


def _handful(weights: Array, rng: np.random.Generator) -> list[tuple[int, float]]:
    """The most probable hypotheses, and draws that share the others' weight; no negligible one."""
    found = {i: float(weight) for i, weight in enumerate(weights[:LIKELIEST])}
    rest = float(weights[LIKELIEST:].sum())
    if rest > 0:
        at = (rng.random() + np.arange(DRAWN)) / DRAWN
        drawn = LIKELIEST + np.searchsorted(np.cumsum(weights[LIKELIEST:]) / rest, at)
        for i in np.minimum(drawn, len(weights) - 1).tolist():
            found[i] = found.get(i, 0.0) + rest / DRAWN
    kept = {i: weight for i, weight in found.items() if weight >= HARDLY}
    whole = sum(kept.values())
    return [(i, weight / whole) for i, weight in kept.items()]
