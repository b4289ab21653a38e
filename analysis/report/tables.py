"""The report's tables of trials: columns and rows."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis import units
from analysis.explanation import expectation
from analysis.metrics import Metrics
from analysis.report.outcomes import ranked_trials, succeeded
from analysis.run.fold import Run
from analysis.run.trial import Trial, meaning
from foundation.quantities import config_text

LISTED = 1_000  # trials in the table of all; results.csv has every one
TAIL_LINES = 20
TAIL_CHARACTERS = 4000
KEY_METRICS = ("tflops_per_gpu", "tokens_per_second", "step_time_s.median", "peak_memory_bytes")
LINKS = {"stdout": "stdout.log", "stderr": "stderr.log", "folder": ""}  # of a trial's folder


def parameters(run: Run) -> tuple[list[str], dict[str, Any]]:
    """Names of parameters that differ between trials, and the others with their values."""
    configs = [trial.config for trial in run.trials.values()]
    names = list(dict.fromkeys(name for config in configs for name in config))
    varied = [n for n in names if any(c.get(n) != configs[0].get(n) for c in configs)]
    if not varied:
        return names, {}  # one trial only: show all parameters
    return varied, {name: configs[0].get(name) for name in names if name not in varied}


def listed(run: Run) -> list[Trial]:
    """The trials that the page lists, by number: all, or the front, the best and the latest."""
    trials = [trial for _, trial in sorted(run.trials.items())]
    if len(trials) <= LISTED:
        return trials
    best_first = [*run.front()[: LISTED // 2], *ranked_trials(run)[: LISTED // 2], *trials[::-1]]
    numbers = list(dict.fromkeys(trial.number for trial in best_first))[:LISTED]
    return [run.trials[number] for number in sorted(numbers)]


def metric_columns(run: Run, frame: pd.DataFrame) -> list[dict[str, str]]:
    """Key metrics in the results, except the objective."""
    return [
        {"key": key, "label": units.label(key)}
        for key in KEY_METRICS
        if f"m:{key}" in frame.columns and key != run.objective_key
    ]


def trial_row(run: Run, trial: Trial) -> dict[str, Any]:
    folder = run.folder.trial(trial.number)
    key = run.objective_key
    expected = expectation(run, trial)
    state = trial.kind or ("running" if trial.running else "pending")
    return {
        "number": trial.number,
        # the filter reads trials that have ended from the page's data
        "words": ""
        if trial.ended
        else f"trial {trial.number} {state} {trial.by} {config_text(trial.config)}",
        "state": f"{state}, beyond a bound" if trial.violated else state,
        "early": trial.stopped_early,
        "measurements": [
            units.scaled(key, x) for x in trial.measurements if len(trial.measurements) > 1
        ],
        "colour": meaning(trial.kind)[1] if trial.kind else "gray",
        "objective": units.scaled(key, trial.objective or 0.0) if succeeded(trial) else None,
        "more": [units.scaled(key, trial.objectives.get(key)) for key, _ in run.goals[1:]],
        "config": trial.config,
        "metrics": {key: units.scaled(key, Metrics(trial.result).get(key)) for key in KEY_METRICS},
        "elapsed_s": trial.elapsed_s or None,
        "attempts": len(trial.attempts),
        "nodes": trial.attempts[-1].nodes if trial.attempts else (),
        "by": trial.by,
        "why": "; ".join(filter(None, [trial.why, expected and f"expected: {expected}"])),
        "message": "; ".join([*trial.violated, *filter(None, [trial.message])]),
        "tail": "\n".join(trial.stderr_tail[-TAIL_CHARACTERS:].splitlines()[-TAIL_LINES:]),
        "links": [
            (name, f"../trials/{folder.name}/{file}")
            for name, file in LINKS.items()
            if (folder / file).exists()
        ],
    }
