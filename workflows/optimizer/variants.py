"""Variants: configurations that differ only in parameters without a price from a measured one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis import Array, Trial, unpriced_parameters
from search_spaces import Candidates, Indices

DEGREES = 8  # that have succeeded, before what is left to gain can be said


class Variants:
    """Tells which candidates are variants of what was measured.

    Args:
        candidates: of the space.
        indices: of those in the race.
    """

    def __init__(self, candidates: Candidates, indices: Indices) -> None:
        self._candidates, self._unpriced = candidates, unpriced_parameters(candidates.space)
        self._degrees = self._degrees_at(indices)

    def at_most(
        self, free: Indices, effects: Array, trials: Sequence[Trial], there: Array, logs: Array
    ) -> Array:
        """What candidates are at most, by what was measured of their variants; shape (m,).

        It is infinite where nothing was. The Gaussian process takes a run that was much too slow
        for a disturbed one, which says nothing of any other. A variant would run the same again.

        Args:
            free: places of the candidates in the race; shape (m,).
            effects: what unpriced parameters do to the candidates' logarithms; shape (m,).
            trials: that succeeded.
            there: as ``effects``, of the trials; shape (n,).
            logs: what was measured of them, more being better; shape (n,).
        """
        if not self._unpriced or not trials:
            return np.full(len(free), np.inf)
        same = self._degrees[free][:, None] == self._degrees_of(trials)
        most = np.where(same, logs + effects[:, None] - there, -np.inf).max(axis=1)
        return np.where(same.any(axis=1), most, np.inf)

    def enough(self, successes: Sequence[Trial]) -> bool:
        """Whether they say something of other degrees: variants of a few do not."""
        return not self._unpriced or len(np.unique(self._degrees_of(successes))) >= DEGREES

    def _degrees_of(self, trials: Sequence[Trial]) -> Indices:
        return self._degrees_at(self._candidates.indices_of([t.config for t in trials]))

    def _degrees_at(self, indices: Indices) -> Indices:
        """Of configurations the variant in which every unpriced parameter has its first value."""
        parameters = self._candidates.space.parameters
        radix = [len(parameter.values) for parameter in parameters.values()]
        digits = dict(zip(parameters, np.unravel_index(indices, radix), strict=True))
        first = [0 * d if name in self._unpriced else d for name, d in digits.items()]
        return np.asarray(np.ravel_multi_index(first, radix))
