"""Error of the cost model on language models that it was not fitted to."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from analysis.cost.memory_fit import Measurements
from analysis.cost.model import CostModel
from trainer.plan.jobs import Jobs, Mask

FOLDS = 6  # at most; more models than that share them
SIGMAS = 1.96  # of a normal deviation that hold 95 %


def fitted_to(measurements: Measurements, model: CostModel) -> CostModel:
    """The calibrated model, with intervals wide enough for other language models' step times.

    Each language model is predicted from the others, and ``tail_log_sd`` is such that 95 % of these
    errors are inside. With a single one it stays as calibrated.
    """
    found = model.calibrated(measurements)
    tail = missed(measurements, model)
    return replace(found, tail_log_sd=max(tail, found.tail_log_sd))


def missed(measurements: Measurements, model: CostModel) -> float:
    """Deviation with 95 % of the left-out models' log errors within 1.96 times it; 0 for one model.

    Every fold has the same weight. A run is compared with the nearer state of the network.
    """
    fold_of = _folds(measurements.jobs)
    errors = []
    for fold in np.unique(fold_of):
        jobs, measured = _rows(measurements, fold_of == fold).timed
        if len(jobs) and (fold_of != fold).any():
            others = model.calibrated(_rows(measurements, fold_of != fold))
            states = np.abs(np.log(others.predict(jobs).states_s) - measured)
            errors.append(states.min(axis=0))
    if len(errors) < 2:
        return 0.0
    missed = np.concatenate(errors)
    weights = np.concatenate([np.full(len(fold), 1 / len(fold)) for fold in errors])
    order = np.argsort(missed)
    place = np.searchsorted(np.cumsum(weights[order]), 0.95 * weights.sum())
    return float(missed[order][place]) / SIGMAS


def shapes(jobs: Jobs) -> list[tuple[float, float]]:
    """Layers and width of each job, which identify its model."""
    return list(zip(jobs.model.num_layers.tolist(), jobs.model.hidden_size.tolist(), strict=True))


def _folds(jobs: Jobs) -> np.ndarray:
    """The fold of each job, by its model; shape (n,)."""
    of = shapes(jobs)
    order = np.random.default_rng(0).permutation(sorted({*of}))
    number = {tuple(shape): place % FOLDS for place, shape in enumerate(order.tolist())}
    return np.array([number[shape] for shape in of])


def _rows(measurements: Measurements, mask: Mask) -> Measurements:
    return Measurements(*(getattr(measurements, f.name)[mask] for f in fields(measurements)))
