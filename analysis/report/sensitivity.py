"""Sensitivity by the trials alone, and over the whole space by the calibrated cost model.

Dash et al. 2023, section IV, Figure 10: a regression from parameters to objective over the
successful trials, and the mean absolute SHAP value of each parameter. Failure is explained in the
same way, because a regression over successes does not tell what makes trials fail.

A guided search has few trials, close to the best one; a forest on them explains little. The model
that they calibrated, corrected by its residuals, predicts every other configuration. A forest is
fitted to these predictions, and SHAP explains the forest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.cost.groups import MissingFactError
from analysis.cost.model import LIKELY
from analysis.prediction.columns import unpriced_parameters
from analysis.prediction.pricing import SUCCESSES
from analysis.report.encoding import Encoded, encode
from analysis.report.forests import NUM_REFITS, NotEnough, Sensitivity, fitted, folded, resampled
from analysis.report.outlook import Outlook
from analysis.run.trial import COMPLETED
from foundation.quantities import counted
from slurm import Kind

MIN_TRIALS = 8  # below, out-of-bag scores and SHAP values are noise
MIN_PER_CLASS = 3
FEW_PER_PARAMETER = 5
LOW_R2 = 0.5
SAMPLED = 2_000  # configurations that likely fit, to which the forest is fitted
FEWEST = 8  # of these


def objective_sensitivity(frame: pd.DataFrame, seed: int = 0) -> Sensitivity:
    """Drivers of the objective among successful trials of ``analysis.load(run)``.

    Raises NotEnough with fewer than MIN_TRIALS successes, or no parameter or objective varied.
    """
    finite = np.isfinite(frame["objective"].astype(float))
    frame = frame[(frame["kind"] == Kind.OK.value) & finite]
    target = frame["objective"].to_numpy(float)
    encoded = _enough(frame, "successful trial")
    if np.ptp(target) == 0:
        raise NotEnough(f"All {len(frame)} successful trials reached the same objective.")
    found = fitted(encoded, target, seed, resampled(target, seed))
    cautions = _few(len(frame), encoded, "successes")
    if found.oob_score < LOW_R2:
        cautions.append(
            "The forest predicts unseen trials poorly (out-of-bag R² = "
            f"{found.oob_score:.2f}, below {LOW_R2}): the ranking may not hold."
        )
    return replace(found, trial=frame["trial"].to_numpy(int)[found.trial], warnings=tuple(cautions))


def failure_sensitivity(frame: pd.DataFrame, seed: int = 0) -> Sensitivity:
    """Drivers of failure among completed trials of ``analysis.load(run)``.

    Lost nodes, failed launches, preempted and cancelled trials do not count.

    Raises NotEnough with fewer than MIN_TRIALS trials, fewer than MIN_PER_CLASS successes or
    failures, or no parameter varied.
    """
    others = int((~frame["kind"].isin(COMPLETED)).sum())
    aside = f", beside {others} that ended for other reasons" if others else ""
    frame = frame[frame["kind"].isin(COMPLETED)]
    failed = (frame["kind"] != Kind.OK.value).to_numpy(bool)
    if len(frame) and not failed.any():
        raise NotEnough("No trial failed because of its configuration.")
    if len(frame) and failed.all():
        advice = "look for what they have in common (the trainer, its environment) first."
        if set(frame["kind"]) <= {Kind.OOM.value, Kind.HOST_OOM.value}:
            advice = (
                "none fits into memory; try smaller micro-batches, more sharding or recomputation."
            )
        every = f"All {len(frame):,} trials" if len(frame) > 1 else "The only trial"
        raise NotEnough(f"{every} failed{aside}: {advice}")
    encoded = _enough(frame, "trial")
    rarer = min(int(failed.sum()), int((~failed).sum()))
    if rarer < MIN_PER_CLASS:
        raise NotEnough(
            f"{failed.sum()} of {len(frame)} trials failed{aside}; "
            f"telling failures from successes needs at least {MIN_PER_CLASS} of each."
        )
    found = fitted(encoded, failed, seed, resampled(failed, seed))
    base_rate = 1 - rarer / len(frame)
    cautions = _few(len(frame), encoded, "trials")
    if found.oob_score <= base_rate:
        cautions.append(
            f"The forest is no better than the majority-class baseline (out-of-bag accuracy "
            f"{found.oob_score:.0%}, baseline {base_rate:.0%}): the ranking may not hold."
        )
    return replace(
        found,
        trial=frame["trial"].to_numpy(int)[found.trial],
        base_rate=base_rate,
        warnings=tuple(cautions),
    )


def _enough(frame: pd.DataFrame, what: str) -> Encoded:
    if len(frame) < MIN_TRIALS:
        raise NotEnough(
            f"{counted(len(frame), what) if len(frame) else f'No {what}s'} so far; "
            f"a sensitivity analysis needs at least {MIN_TRIALS}."
        )
    encoded = encode(frame)
    if encoded.values.empty:
        raise NotEnough(f"No parameter varied among the {len(frame)} {what}s.")
    return encoded


def _few(n: int, encoded: Encoded, what: str) -> list[str]:
    parameters = encoded.values.shape[1]
    if n >= FEW_PER_PARAMETER * parameters:
        return []
    return [
        f"Only {n} {what} for {counted(parameters, 'parameter')} (rule of thumb: at least "
        f"{FEW_PER_PARAMETER * parameters}): take the order as a hint."
    ]


@dataclass(frozen=True)
class ModelSensitivity:
    """Sensitivity of the objective over a space."""

    found: Sensitivity  # by a forest on predictions for configurations that likely fit
    trials: int  # measured ones that calibrated the model
    likely: float  # share of the valid configurations that likely fit
    # parameters that the cost model does not price; their effects come from measured trials alone
    unseen: tuple[str, ...]


def model_sensitivity(outlook: Outlook, seed: int = 0) -> ModelSensitivity:
    """Sensitivity of the objective over a run's space; the seed is that of the forests.

    Raises NotEnough if the model expects too few configurations to fit.
    """
    likely = outlook.fits >= LIKELY
    indices = outlook.indices[likely][:SAMPLED]
    if len(indices) < FEWEST:
        raise NotEnough(
            f"The cost model expects {len(indices)} of {likely.size} configurations to fit."
        )
    members = outlook.members(indices)
    try:
        target = outlook.objective(outlook.posterior(members))
    except MissingFactError as error:
        raise NotEnough(f"The cost model cannot predict it: {error}.") from error
    encoded = encode(outlook.frame(indices))
    if encoded.values.empty or np.ptp(target) == 0:
        raise NotEnough("The cost model expects the same of all configurations that likely fit.")

    space, rows = outlook.pricing.space, np.arange(len(target))
    draws = ((rows, outlook.objective(outlook.drawn(members))) for _ in range(NUM_REFITS))
    found = folded(fitted(encoded, target, seed, draws), space)
    unseen = tuple(n for n in unpriced_parameters(space) if n in encoded.values)
    return ModelSensitivity(
        found, min(SUCCESSES, len(outlook.observations.successes)), float(likely.mean()), unseen
    )
