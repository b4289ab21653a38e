"""A run folder as a table: one row per trial that has ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from analysis.metrics import Metrics
from analysis.run.fold import Run, read_run
from search_spaces import SpaceError, load_space

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
    """One row per ended trial, in the order of their numbers.

    Columns, in this order; names of times and the like end in their unit:

    - ``trial`` and every parameter, ``p:NAME``. Words that the space lists as ``{ordered: [...]}``
      are an ordered categorical;
    - ``objective``, in the unit of the result (NaN unless ok), and beside it what was ``expected``
      before the trial ran, ``expected_low`` and ``expected_high`` (the ends of the 95 % interval)
      and ``expected_fits`` (probability to run); NaN where nothing was predicted;
    - ``kind``, ``attempts``; ``proposed_s``, ``started_s`` and ``ended_s`` (since the run was
      opened; ``started_s`` is NaN for a trial that never was), ``elapsed_s``, ``node_hours``,
      ``nodes``, ``by``, ``message``, ``measurements`` (complete ones, of which ``objective`` is
      the median), ``early`` (stopped before its last step);
    - ``m:KEY`` for every number in the result.

    ``attrs`` of the frame has the ``objective``'s key and whether it is to ``maximize``.
    """
    return frame_of(read_run(directory))


def _ordered(run: Run) -> dict[str, list[str]]:
    """Words of parameters whose order the run's space states; none where it cannot be read."""
    try:
        space = load_space(run.folder.space_file, frozen=True)
    except SpaceError:
        return {}
    return {p.name: [str(v) for v in p.values] for p in space.parameters.values() if p.ordered}


def frame_of(run: Run) -> pd.DataFrame:
    """The same of a run that is read already."""
    import pandas as pd

    origin = run.opened_t[0] if run.opened_t else 0.0
    rows = []
    for trial in sorted(run.trials.values(), key=lambda t: t.number):
        if not trial.ended:
            continue
        told = trial.expected
        started_t = trial.attempts[0].started_t if trial.attempts else float("nan")
        rows.append(
            {
                "trial": trial.number,
                **{f"p:{name}": value for name, value in trial.config.items()},
                "objective": float("nan") if trial.objective is None else trial.objective,
                **{column: told.get(key, float("nan")) for column, key in _EXPECTED.items()},
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
    frame.attrs = {"objective": run.objective_key, "maximize": run.maximize}
    for name, words in _ordered(run).items():
        if (column := f"p:{name}") in frame:
            frame[column] = pd.Categorical(frame[column], words, ordered=True)
    return frame
