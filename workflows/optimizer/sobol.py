"""A Sobol sequence over the parameters: spreads trials evenly, and learns nothing.

A good design of experiments for a sensitivity analysis; also the shortest example of a policy.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import qmc

from analysis import Run
from workflows.optimizer.policy import Policy, Proposal


class SobolPolicy(Policy):
    """The candidate that is nearest to the next point of a scrambled Sobol sequence."""

    def propose(self, run: Run, max_nodes: int) -> Proposal | None:
        candidates = self.problem.new(run, max_nodes, self.problem.rng(run))
        if not candidates:
            return None
        places = self.problem.places(candidates)
        number, axes = len(run.trials), places.shape[1]
        nearest = 0
        if axes:
            sequence = qmc.Sobol(axes, rng=self.problem.seed)
            if number:  # which must not be 0
                sequence.fast_forward(number)
            distances = np.square(places - sequence.random(1)).sum(axis=1)
            nearest = int(np.argmin(distances))
        config = self.problem.space.canonical(candidates[nearest])
        return Proposal(config, "sobol", f"nearest to point {number + 1} of the sequence")
