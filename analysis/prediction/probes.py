"""Probes: the short trials of a shallower model that tell most about configurations that may win.

An ensemble of cost models is drawn from the prior: constants of time and memory, and habits of the
framework. Log step times and log peaks of probes and of promising configurations are treated as
jointly normal over it. Probes are chosen one after the other, by the variance of promising
configurations that each removes per node-second (greedy A-optimal design; Krause et al. 2008).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from analysis.cost.model import CostModel
from analysis.prediction.candidate_set import CandidateSet
from analysis.prediction.pricing import Pricing, reported
from analysis.prediction.start_up import StartUp
from foundation.documents import as_written
from foundation.quantities import counted, duration
from search_spaces import Framework
from trainer.plan.jobs import Array

MEMBERS = 64  # of the ensemble
PROBED = 400  # configurations of the shallower model among which probes are chosen
TOP = 1_000  # best configurations of the space, among which promising ones are sought
PROMISING = 24  # best configurations by each member
RUNS = 0.9  # least probability to fit of a probe: its failure would tell little
ROOM = 0.5  # share of the memory that a probe needs at most, if any needs so little
NOISE = 0.04  # log error of a probe that no constant explains


def informative(
    candidates: CandidateSet, shallow: CandidateSet, seconds: Array, count: int, seed: int
) -> list[int]:
    """Rows of the probes to run, the most informative first.

    ``shallow`` has the shallower model's configurations; ``seconds`` are the node-seconds of each.
    """
    rng = np.random.default_rng(seed)
    runs = shallow.pricing.model.fits(shallow.jobs) >= RUNS
    limit = ROOM * shallow.pricing.model.memory_limit_bytes
    easy = shallow.pricing.model.predict(shallow.jobs).peak_bytes <= limit
    rows = np.flatnonzero(runs & easy if (runs & easy).any() else runs)
    rows = rows[rng.permutation(len(rows))[:PROBED]]
    if not len(rows):
        return []
    models = [drawn(candidates.pricing.model, rng) for _ in range(MEMBERS)]
    targets = _centred(_targets(candidates, models))
    jobs = shallow.jobs[rows]
    times = _centred(np.log([model.predict(jobs).step_time_s for model in models]))
    peaks = _centred(np.log([model.reported_peak_bytes(jobs) for model in models]))
    chosen: list[int] = []
    for _ in range(min(count, len(rows))):
        gains = _explained(times, targets) + _explained(peaks, targets)
        gains[chosen] = 0.0
        best = int(np.argmax(gains / seconds[rows]))
        chosen.append(best)
        # Shrink the ensemble to its spread after the probe, which does not depend on the result.
        known = np.stack([times[:, best], peaks[:, best]], axis=1) / NOISE
        values, vectors = np.linalg.eigh(np.eye(len(known)) + known @ known.T / len(known))
        shrink = (vectors / np.sqrt(values)) @ vectors.T
        targets, times, peaks = shrink @ targets, shrink @ times, shrink @ peaks
    return [int(rows[i]) for i in chosen]


def lessons(pricing: Pricing) -> Iterator[str]:
    """Lines on what the probes taught about trainer and machine, in quantities of the job."""
    if pricing.probes is None:
        return
    shallow, trials = pricing.probes
    pricing = pricing.supposing()
    successes = [trial for trial in trials if trial.ok]
    if not successes:
        yield f"nothing: none of {counted(len(trials), 'probe')} ran"
        return
    start = StartUp.learned(pricing.space, trials)
    yield f"a trial takes {duration(float(start.seconds(1)))} to start on one node"
    before = pricing.model.predict(shallow.jobs_of([trial.config for trial in successes]))
    took_s = shallow.step_times_s(successes) / before.step_time_s
    peaks = np.array([reported(trial, "peak_memory_bytes") for trial in successes])
    needed = peaks / pricing.model.reported_peak_bytes(before.jobs)
    for what, ratios in (("steps took", took_s), ("memory needed was", needed)):
        if np.isfinite(ratios).any():
            yield f"{what} {np.nanmedian(ratios):.2f} times what was assumed, in the median"
    said = Framework.descriptions()
    for name, (value, p) in pricing.calibrated([]).memory.settled.items():
        yield f"{name}: {as_written(value)} ({100 * p:.0f} %): {said.get(name, '')}"


def drawn(model: CostModel, rng: np.random.Generator) -> CostModel:
    """The model with constants of time and memory, and habits, drawn from their distribution."""
    if model.others:
        return CostModel.of_engines(drawn(one, rng) for one in model.engines)
    return replace(model.drawn(rng), memory=model.memory.drawn(model.framework, rng))


def _targets(candidates: CandidateSet, models: list[CostModel]) -> Array:
    """Log step times over their mean, and log memory over the limit, weighted where near it.

    Both are of the configurations that are promising by some member; shape (members, targets).
    """
    pricing, found = candidates.pricing, set[int]()
    jobs = candidates.jobs[:TOP]
    times, needs = [], []
    for model in models:
        prediction = model.predict(jobs)
        promise = pricing.promise(prediction) * prediction.fits
        found.update(np.argsort(-promise)[:PROMISING].tolist())
        times.append(np.log(prediction.step_time_s))
        needs.append(np.log(prediction.peak_bytes / model.memory_limit_bytes))
    rows = sorted(found)
    speed, margin = np.array(times)[:, rows], np.array(needs)[:, rows]
    ranking = speed - speed.mean(axis=1, keepdims=True)
    near = np.exp(-0.5 * (margin.mean(axis=0) / (margin.std(axis=0) + NOISE)) ** 2)
    return np.concatenate([ranking, margin * near], axis=1)


def _centred(values: Array) -> Array:
    return np.asarray(values - np.mean(values, axis=0))


def _explained(probes: Array, targets: Array) -> Array:
    """Summed variance of the targets that each column of ``probes`` explains."""
    members = len(probes)
    shared = probes.T @ targets / members
    return np.asarray((shared**2).sum(axis=1) / ((probes**2).mean(axis=0) + NOISE**2))
