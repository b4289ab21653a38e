"""The search without recorded runs: on a simulated Frontier, and after a thousand trials."""

from __future__ import annotations

import resource
import statistics
import time
from pathlib import Path

import numpy as np

from analysis.prediction.ranking import SAMPLED
from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import load_space
from search_spaces.points.candidates import Candidates
from workflows.optimizer.registry import make_policy
from workflows.replay.play import NEAR
from workflows.simulation.workload import true_pricing

LARGE, TOLD = "gpt_22b_frontier", 1000


def simulated(name: str, seed: int, policy: str, max_trials: int = 60) -> int | None:
    """Trials to within 5 % on a machine with other constants; None if over ``max_trials``."""
    space = load_space(name)
    truth, candidates = true_pricing(space, 1.0, seed), Candidates(space)
    limit = truth.model.memory_limit_bytes
    every = candidates.indices(SAMPLED, np.random.default_rng(0), [], 2**31)
    prediction = truth.model.predict(truth.jobs(candidates.columns(every)))
    fits = prediction.peak_bytes <= limit
    if not fits.any():
        return None
    best = float(truth.promise(prediction)[fits].max())
    chosen, run = make_policy(space, seed, policy), Run(Path())
    for number in range(1, max_trials + 1):
        proposal = chosen.propose(run, 2**31)
        if proposal is None:
            return None
        answer = truth.predict([proposal.config])
        trial = Trial(number, proposal.config, 0.0, proposal.by, proposal.why, proposal.expected)
        run.trials[number] = trial
        trial.ended_t, trial.kind = 0.0, "oom"
        if answer.peak_bytes[0] <= limit:
            figure = truth.objective(answer)
            trial.kind, trial.objective = "ok", None if figure is None else float(figure[0])
            trial.result = {
                "step_time_s": {"median": float(answer.step_time_s[0])},
                "peak_memory_bytes": float(answer.peak_bytes[0]),
            }
            if truth.promise(answer)[0] >= (1 - NEAR) * best:
                return number
    return None


def at_scale(policy: str) -> tuple[float, float]:
    """CPU seconds of a proposal after many trials, and the process's peak memory in bytes."""
    space = load_space(LARGE)
    truth, rng = true_pricing(space, 1.0, 0), np.random.default_rng(0)
    configs = Candidates(space).draw(TOLD, rng, [], 2**31)
    prediction = truth.predict(configs)
    figure = truth.objective(prediction)
    fits = prediction.peak_bytes <= truth.model.memory_limit_bytes
    run = Run(Path())
    for i, config in enumerate(configs):
        trial = Trial(i + 1, space.canonical(config), 0.0, kind="ok" if fits[i] else "oom")
        if fits[i] and figure is not None:
            trial.objective = float(figure[i])
            trial.result = {"step_time_s": {"median": float(prediction.step_time_s[i])}}
        run.trials[i + 1] = trial
    chosen, taken_s = make_policy(space, 0, policy), []
    for _ in range(6):
        began = time.process_time()
        proposal = chosen.propose(run, 2**31)
        taken_s.append(time.process_time() - began)
        assert proposal is not None
        number = len(run.trials) + 1
        run.trials[number] = Trial(number, proposal.config, 0.0, kind="oom")
    return statistics.median(taken_s[1:]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
