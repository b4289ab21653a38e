"""Runs predictors over the folds of tables, and scores their predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from analysis.sweeps.record import Table, keys
from benchmarks.cost_model.failures import not_memory
from trainer.plan.jobs import Array, Mask

from . import metrics
from .folds import (
    Fold,
    after_calibration,
    ask,
    choose,
    from_others,
    leave_both_out,
    leave_machine_out,
    leave_one_out,
    zero_shot,
)
from .metrics import Ranking
from .peers import Fitted, Predicted, Predictor, predict

CALIBRATION_ROWS = 8
SEEDS = (0, 1, 2)  # of the choice of calibration rows
LEFT_OUT, ZERO_SHOT, CALIBRATED = "left out", "zero-shot", f"after {CALIBRATION_ROWS}"
MACHINE_OUT, BOTH_OUT = "machine left out", "machine and framework left out"
FROM_OTHERS, SHIPPED = "from other tables", "as shipped"  # starts of a search on a new machine


@dataclass(frozen=True)
class Scores:
    """Scores of predictions of some rows; shares of 1, nan if there is nothing to score.

    Attributes:
        rows: number of predicted rows.
        time_error, time_error_median: relative errors of step time, over the rows that ran.
        time_bias: median of predicted over measured, minus 1.
        time_covered: share of the rows within their 95 % interval.
        time_interval: the intervals' score.
        rankings: one for each landscape.
        memory_error: mean relative error of peak memory.
        fitting: over all rows, if some failed.
        fitting_memory: likewise without the failures that cannot be for memory.
    """

    rows: int
    time_error: float
    time_error_median: float
    time_bias: float
    time_covered: float
    time_interval: float
    memory_error: float
    fitting: metrics.Fitting | None
    fitting_memory: metrics.Fitting | None
    rankings: tuple[Ranking, ...] = field(repr=False)

    @property
    def spearman(self) -> float:
        """Median over landscapes."""
        return metrics.median([r.spearman for r in self.rankings])

    @property
    def regret_1(self) -> float:
        return metrics.median([r.regret_1 for r in self.rankings])

    @property
    def regret_top(self) -> float:
        return metrics.median([r.regret_top for r in self.rankings])

    @property
    def close(self) -> int:
        """Landscapes whose best of the first eight is within 5 % of the true best."""
        return sum(r.regret_top <= metrics.CLOSE for r in self.rankings)


def score(table: Table, predicted: Predicted) -> Scores:
    """Score the predictions of a table's rows."""
    samples = table.jobs.global_batch  # a landscape may hold several batch sizes
    errors = metrics.relative_errors(predicted.step_time_s, table.step_time_s)
    ranked = metrics.rankings(
        table.landscape, predicted.promised_s / samples, predicted.fits, table.step_time_s / samples
    )
    fitting = fitting_memory = None
    if table.failed.any() and np.isfinite(predicted.fits).any():
        fitting = metrics.fitting(predicted.fits, table.failed)
        rows = ~not_memory(table)
        fitting_memory = metrics.fitting(predicted.fits[rows], table.failed[rows])
    return Scores(
        rows=len(table),
        time_error=metrics.mean(errors),
        time_error_median=metrics.median(errors),
        time_bias=metrics.median(predicted.step_time_s / table.step_time_s) - 1,
        time_covered=metrics.covered(predicted.low_s, predicted.high_s, table.step_time_s),
        time_interval=metrics.interval_score(predicted.low_s, predicted.high_s, table.step_time_s),
        memory_error=metrics.mean(metrics.relative_errors(predicted.peak_bytes, table.peak_bytes)),
        fitting=fitting,
        fitting_memory=fitting_memory,
        rankings=tuple(ranked),
    )


@dataclass(frozen=True)
class Answer:
    """Predictions of one fold."""

    fold: Fold
    predicted: Predicted


@dataclass(frozen=True)
class Result:
    """One predictor on one table under one scheme.

    Attributes:
        predictor, scheme: their names.
        folds: scores of each fold, by name.
        pooled: scores of all folds' rows together.
        by_framework: scores of each framework's rows, where the table has several.
    """

    predictor: str
    scheme: str
    folds: dict[str, Scores]
    pooled: Scores
    by_framework: dict[str, Scores]


def evaluate(
    table: Table, others: Sequence[Table], predictor: Predictor, scheme: str
) -> Result | None:
    """Evaluate a predictor; None if the scheme has no fold for the table, or the predictor does not
    learn and the scheme is not zero-shot."""
    if scheme != ZERO_SHOT and not predictor.learns:
        return None
    if scheme == CALIBRATED:
        answers = list(_after_calibration(table, others, predictor))
    else:
        folds = _folds(table, others, scheme)
        answers = [Answer(f, predict(predictor.fit(f.train), f.asked)) for f in folds]
    if not answers:
        return None
    indices = np.concatenate([np.flatnonzero(a.fold.rows) for a in answers])
    together = _joined([a.predicted for a in answers])
    rows = table[indices]
    if scheme == CALIBRATED:
        # A landscape is ranked once for every choice of calibration rows.
        names = np.concatenate([np.full(a.fold.rows.sum(), a.fold.name) for a in answers])
        rows = replace(rows, landscape=keys(rows.landscape, names))
    parts = {str(p): rows.framework == p for p in np.unique(rows.framework)}
    return Result(
        predictor.name,
        scheme,
        {a.fold.name: score(table[a.fold.rows], a.predicted) for a in answers},
        score(rows, together),
        {name: score(rows[mask], _part(together, mask)) for name, mask in parts.items()}
        if len(parts) > 1
        else {},
    )


def _folds(table: Table, others: Sequence[Table], scheme: str) -> Iterator[Fold]:
    if scheme == LEFT_OUT:
        return leave_one_out(table, others)
    if scheme == MACHINE_OUT:
        return leave_machine_out(table, others)
    if scheme == BOTH_OUT:
        return leave_both_out(table, others)
    return from_others(table, others) if scheme == FROM_OTHERS else zero_shot(table)


def _after_calibration(
    table: Table, others: Sequence[Table], predictor: Predictor
) -> Iterator[Answer]:
    """For each campaign: predict it without its models, measure some rows, predict the rest."""
    fitted: dict[tuple[str, ...], Fitted] = {}  # campaigns of the same models share the first fit
    for campaign in np.unique(table.campaign):
        rows = table.campaign == campaign
        if np.isfinite(table.step_time_s[rows]).sum() < CALIBRATION_ROWS + metrics.LEAST_ROWS:
            continue
        models = tuple(np.unique(table.model[rows]))
        train = tuple(t[~np.isin(t.model, models)] for t in (table, *others))
        base = Fold(str(campaign), tuple(t for t in train if len(t)), ask(table[rows]), rows)
        if models not in fitted:
            fitted[models] = predictor.fit(base.train)
        first = predict(fitted[models], base.asked)
        expected_s, fits = _spread(first.step_time_s, rows), _spread(first.fits, rows)
        for seed in SEEDS:
            random = np.random.default_rng(seed)
            chosen = choose(expected_s, fits, rows, CALIBRATION_ROWS, random)
            fold = after_calibration(base, table, chosen, f"{campaign}, choice {seed}")
            yield Answer(fold, predict(predictor.fit(fold.train), fold.asked))


def _spread(values: Array, rows: Mask) -> Array:
    whole = np.full(len(rows), np.nan)
    whole[rows] = values
    return whole


def _part(predicted: Predicted, rows: Mask) -> Predicted:
    return Predicted(*(getattr(predicted, f.name)[rows] for f in fields(Predicted)))


def _joined(parts: Sequence[Predicted]) -> Predicted:
    return Predicted(
        *(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Predicted))
    )
