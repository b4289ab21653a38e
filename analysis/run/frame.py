"""A run folder as a table: one row per trial that has ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from analysis.metrics import Metrics
from analysis.run.fold import Run, read_run

if TYPE_CHECKING:
    import pandas as pd

_EXPECTED = {
    "expected": "objective", "expected_low": "low", "expected_high": "high",
    "expected_fits": "fits",
}  # fmt: skip
_COLUMNS = (
    "trial", "objective", *_EXPECTED, "kind", "attempts", "proposed_s", "started_s", "ended_s",
    "elapsed_s", "node_hours", "nodes", "by", "message", "measurements", "early",
)  # fmt: skip


def load(directory: Path | str) -> pd.DataFrame:
    """One row per ended trial, by number.

    Columns in this order; names of quantities end in their unit:

    - ``trial`` and every parameter, ``p:NAME``; whole numbers stay whole (``Int64`` where some are
      missing), words that the space orders (``{ordered: [...]}``)
      are an ordered categorical;
    - ``objective`` in the unit of the result (NaN unless ok); its prediction before the trial ran,
      ``expected``, with the 95 % interval ``expected_low`` to ``expected_high`` and the probability
      to run ``expected_fits``; NaN without a prediction;
    - ``kind``, ``attempts``; ``proposed_s``, ``started_s`` (NaN if it never was) and ``ended_s``
      since the run was opened; ``elapsed_s``, ``node_hours``, ``nodes``, ``by``, ``message``,
      ``measurements`` (complete ones; ``objective`` is their median), ``early`` (stopped early);
    - ``m:KEY`` for every number in the result.

    ``attrs`` has the ``objective``'s key and whether to ``maximize`` it.
    """
    return frame_of(read_run(directory))


def frame_of(run: Run) -> pd.DataFrame:
    """The table of :func:`load`, of a run that has been read."""
    import pandas as pd

    origin = run.opened_t[0] if run.opened_t else 0.0
    rows = []
    for trial in run.ended:
        expected = {n: trial.expected.get(key, float("nan")) for n, key in _EXPECTED.items()}
        started_t = trial.attempts[0].started_t if trial.attempts else float("nan")
        rows.append(
            {
                "trial": trial.number,
                **{f"p:{name}": value for name, value in trial.config.items()},
                "objective": float("nan") if trial.objective is None else trial.objective,
                **expected,
                "kind": trial.kind,
                "attempts": len(trial.attempts),
                "proposed_s": trial.proposed_t - origin,
                "started_s": started_t - origin,
                "ended_s": (trial.ended_t or trial.proposed_t) - origin,
                "elapsed_s": trial.elapsed_s,
                "node_hours": trial.node_seconds / 3600,
                "nodes": ",".join(trial.attempts[-1].nodes) if trial.attempts else "",
                "by": trial.by,
                "message": trial.message,
                "measurements": len(trial.measurements),
                "early": trial.stopped_early,
                **{f"m:{key}": value for key, value in Metrics(trial.result).all().items()},
            }
        )
    names = list(dict.fromkeys(name for row in rows for name in row))
    names.sort(key=lambda name: (name.startswith("m:"), name in _COLUMNS[1:], name != "trial"))
    frame = pd.DataFrame(rows, columns=names or list(_COLUMNS))
    for name in (name for name in names if name.startswith(("p:", "m:"))):
        values = [row.get(name) for row in rows]
        if {*map(type, values)} == {int, type(None)}:  # whole numbers would become fractions
            frame[name] = pd.array(values, dtype="Int64")
    frame.attrs = {"objective": run.objective_key, "maximize": run.maximize}
    space = run.folder.readable_space()
    for own in space.parameters.values() if space else ():
        if own.ordered and (column := f"p:{own.name}") in frame:
            words = [str(value) for value in own.values]
            frame[column] = pd.Categorical(frame[column], words, ordered=True)
    return frame
