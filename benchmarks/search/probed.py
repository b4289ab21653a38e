"""Probes of a recorded landscape, answered by a smaller landscape of the same trainer.

A sweep has no runs of a shallower model. Its smallest model on the fewest nodes stands in for it: a
trial of that costs a fraction, and shows the effect of each value of an unpriced parameter.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from analysis.prediction.candidate_set import CandidateSet
from analysis.prediction.pricing import Pricing
from analysis.prediction.probes import informative
from analysis.prediction.start_up import StartUp
from analysis.run.trial import Trial
from search_spaces.points.candidates import Candidates
from workflows.optimizer.policy import Problem
from workflows.replay.landscape import Landscape
from workflows.search.probing import alike_but_for_one

STEPS = 10.0  # of a trial that runs; a trial that runs out of memory fails in its first


def size(landscape: Landscape) -> tuple[int, int]:
    """Nodes and parameters: the smaller these are, the cheaper are probes."""
    model = landscape.space.model
    return landscape.space.widths[-1], model.num_parameters if model else 0


def node_seconds(landscape: Landscape, trials: Iterable[Trial]) -> np.ndarray:
    """Node-seconds of each trial."""
    start_s = StartUp.expected(landscape.space).base_s
    took_s = [
        start_s + (STEPS * t.result["step_time_s"]["median"] if t.ok else 0.0) for t in trials
    ]
    return landscape.space.widths[-1] * np.array(took_s)


def told_by_probes(problem: Problem, on: Landscape) -> float:
    """Probe each unpriced value and give the results to the problem's prices; node-seconds spent.

    The probes vary the most informative configuration. There are none if they would cost more than
    one trial.

    Args:
        problem: a problem whose search has not begun.
        on: the landscape that answers probes; it has the problem's unpriced parameters.
    """
    whole, small = problem.pricing, Pricing(on.space)
    if whole is None or size(on)[0] == problem.space.widths[-1]:
        return 0.0
    every = CandidateSet.shortlist(whole, problem.candidates, problem.seed)
    few = CandidateSet.shortlist(small, Candidates(on.space, on.configs), problem.seed)
    seconds = small.model.predict(few.jobs).step_time_s
    rows = informative(every, few, seconds, 1, problem.seed)
    configs = few.candidates.configs(few.indices[rows])
    trials = []
    for config in map(on.space.canonical, alike_but_for_one(small, configs)):
        answer = next(a for a in on.answers[tuple(config.items())])
        trials.append(Trial(len(trials) + 1, config, 0.0, ended_t=0.0, kind=answer.kind))
        if answer.ok:
            trials[-1].objective, trials[-1].result = answer.objective, answer.result
    spent = float(node_seconds(on, trials).sum())
    best = whole.model.predict(every.jobs[:1])
    start_s = StartUp.expected(problem.space).base_s
    if spent > float(best.num_nodes[0] * (start_s + STEPS * best.step_time_s[0])):
        return 0.0
    whole.probes = small, tuple(trials)
    return spent
