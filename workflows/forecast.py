"""What the cost model says of a run's own trials, for its report."""

from __future__ import annotations

import copy

import numpy as np

from analysis.cost.model import CostModel
from analysis.prediction.held_out import Forecast
from analysis.prediction.pricing import Pricing, measured, price
from analysis.run.fold import Run
from search_spaces import SpaceError, load_space

FOLDS = 5


def forecast_of(run: Run) -> Forecast | None:
    """The forecast for a run's trials that ran or ran out of memory.

    A model that has seen a trial predicts it too well. What is compared with a trial's figures is
    therefore predicted by a model calibrated without it: the trials are cut into five parts, and
    each is predicted after the other four.

    Returns:
        None where the space cannot be read or priced, or no trial says anything.
    """
    try:
        pricing = price(load_space(run.folder.space_file))
    except SpaceError:
        return None
    if pricing is None:
        return None
    trials = pricing.teaching(t for _, t in sorted(run.trials.items()))
    if not trials:
        return None
    try:
        before = pricing.predict([t.config for t in trials])
    except ValueError:  # the cluster's facts lack a link that these trials cross
        return None
    held_out_s, held_out_bytes, held_out_fits = (np.empty(len(trials)) for _ in range(3))
    parts = np.arange(len(trials)) % FOLDS
    for part in np.unique(parts):
        own = np.flatnonzero(parts == part)
        model = pricing.calibrated([t for t, p in zip(trials, parts, strict=True) if p != part])
        found = _with(pricing, model).predict([trials[i].config for i in own])
        held_out_s[own] = found.step_time_s
        held_out_bytes[own] = model.memory.peak_bytes(found.jobs, model.framework)  # as reported
        held_out_fits[own] = found.fits
    whole = _with(pricing, pricing.calibrated(trials))
    return Forecast(
        trials=tuple(t.number for t in trials),
        prediction=whole.predict([t.config for t in trials]),
        before_s=before.step_time_s,
        held_out_s=held_out_s,
        held_out_bytes=held_out_bytes,
        held_out_fits=held_out_fits,
        measured_s=np.array([pricing.step_time_s(t) for t in trials]),
        measured_bytes=np.array([measured(t, "peak_memory_bytes") for t in trials]),
        out_of_memory=np.array([not t.ok for t in trials]),
    )


def _with(pricing: Pricing, model: CostModel) -> Pricing:
    other = copy.copy(pricing)
    other.model = model
    return other
