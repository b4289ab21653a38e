"""The report over a run folder: one page that needs nothing but itself, and ``best.yaml``."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import yaml
from markupsafe import Markup
from matplotlib.figure import Figure

from analysis import figures, front, pareto, quantities, settled, stacks
from analysis.forecast import Forecast, Forecaster
from analysis.run import Run, read_run
from analysis.sensitivity import (
    NotEnough,
    Sensitivity,
    failure_sensitivity,
    objective_sensitivity,
)
from analysis.table import load
from analysis.trajectory import (
    ended_t,
    failures,
    idle_spans,
    ranking,
    search_time_s,
    succeeded,
    trajectory,
)
from analysis.trial import TOLD, Trial

TOP = 10
DRAWN = 5  # best trials whose predicted parts are drawn
TAIL_LINES = 20
TAIL_CHARACTERS = 4000
KEY_METRICS = (
    "tflops_per_gpu",
    "tokens_per_second",
    "step_time_s.median",
    "peak_memory_bytes",
)
LINKS = {"stdout": "stdout.log", "stderr": "stderr.log", "folder": ""}  # of a trial's folder


@dataclass(frozen=True)
class Section:
    """A sensitivity analysis on the page: a figure, or the reason why there is none."""

    refusal: str = ""
    sensitivity: Sensitivity | None = None
    image: str = ""


def write_report(run_dir: Path, forecaster: Forecaster | None = None) -> Path:
    """Write ``report/`` in a run folder: ``index.html``, its figures as PNG, ``best.yaml``.

    It can be written at any time, also while the search runs; files are replaced whole.

    Args:
        run_dir: ``runs/NAME``.
        forecaster: gives the cost model's word on the run's trials; without it the page has none.

    Returns:
        Path of ``index.html``.

    Raises:
        RunError: ``run_dir`` is not a run folder, or its journal is damaged.
    """
    run = read_run(run_dir)
    folder = Path(run_dir) / "report"
    folder.mkdir(exist_ok=True)
    frame = load(run_dir)
    frame["objective"] = quantities.scaled(run.objective_key, frame["objective"])
    what, unit = quantities.label(run.objective_key), quantities.unit(run.objective_key)
    effect = unit or run.objective_key
    best_problem = _write_best(run, folder / "best.yaml")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "number": quantities.number,
        "duration": quantities.duration,
        "value": _value,
        "percent": quantities.percent,
    }
    varied, fixed = _parameters(run)
    forecast = forecaster(run) if forecaster else None
    template = environment.from_string(Path(__file__).with_name("report.html").read_text())
    page = template.render(
        run=run,
        objective={"label": what, "unit": unit, "verb": "max" if run.maximize else "min"},
        facts=_facts(run),
        best=run.best,
        best_problem=best_problem,
        sought=front.sought(run),
        more=[quantities.label(key) for key, _ in run.goals[1:]],
        front=_front(run, folder / "front.png"),
        trajectory=_image(folder / "trajectory.png", _trajectory_figure(run, what)),
        drivers=_section(objective_sensitivity, frame, folder / "objective_shap.png", effect),
        failing=_section(
            failure_sensitivity, frame, folder / "failure_shap.png", "probability of failing"
        ),
        forecast=forecast,
        stacks=_stacks(folder / "forecast.png", run, forecast),
        failures=failures(run).to_dict("records"),
        parameters=varied,
        fixed=fixed,
        metrics=_metrics(run, frame),
        settled=settled.verdict_rows(run) + settled.saved_rows(run),
        error_shares=settled.shares(run),
        top=[_row(run, trial) for trial in ranking(run)[:TOP]],
        trials=[_row(run, trial) for _, trial in sorted(run.trials.items())],
    )
    _replace(folder / "index.html", page.encode("utf-8", "replace"))
    return folder / "index.html"


def _facts(run: Run) -> dict[str, Any]:
    """Counts and sums for the head of the page; times in seconds."""
    trials = list(run.trials.values())
    ended = [t for t in trials if t.ended]
    done = ranking(run)
    failed = [t for t in ended if not t.ok]
    node_hours = sum(t.node_seconds for t in trials) / 3600
    middle = float(pd.Series([t.objective for t in done], dtype=float).median()) if done else 0.0
    best = run.best.objective if run.best and run.best.objective is not None else 0.0
    ratio = (best / middle if run.maximize else middle / best) if best > 0 and middle > 0 else None
    origin_t = run.opened_t[0] if run.opened_t else run.last_t
    return {
        "ended": len(ended),
        "ok": len(done),
        "failed": len(failed),
        "unfinished": len(trials) - len(ended),
        "sessions": len(run.opened_t),
        "search_s": search_time_s(run.last_t, origin_t, idle_spans(run)),
        "node_hours": node_hours,
        "failed_share": sum(t.node_seconds for t in failed) / 3600 / node_hours
        if node_hours
        else 0.0,
        "over_median": ratio,
        "as_of": f"{datetime.fromtimestamp(run.last_t, UTC):%Y-%m-%d %H:%M} UTC",
    }


def _trajectory_figure(run: Run, what: str) -> Figure:
    origin_t, idle = (run.opened_t[0] if run.opened_t else 0.0), idle_spans(run)
    restarts_s = [search_time_s(t, origin_t, idle) for t in run.opened_t[1:]]
    frame = trajectory(run)
    key = run.objective_key
    for column in ("objective", "best"):
        frame[column] = quantities.scaled(key, frame[column])
    return figures.trajectory_figure(frame, what, restarts_s)


def _section(
    analyse: Callable[[pd.DataFrame], Sensitivity], frame: pd.DataFrame, path: Path, effect: str
) -> Section:
    try:
        sensitivity = analyse(frame)
    except NotEnough as refusal:
        path.unlink(missing_ok=True)  # of an earlier state of the run
        return Section(refusal=str(refusal))
    figure = figures.sensitivity_figure(sensitivity, effect)
    return Section(sensitivity=sensitivity, image=_image(path, figure))


def _stacks(path: Path, run: Run, forecast: Forecast | None) -> str:
    """Data URL of the best trials' predicted parts; empty where there is nothing to draw."""
    best = [trial.number for trial in ranking(run)[:DRAWN]]
    if forecast is None or not best:
        path.unlink(missing_ok=True)  # of an earlier state of the run
        return ""
    return _image(path, stacks.forecast_figure(forecast, best))


def _front(run: Run, path: Path) -> dict[str, Any] | None:
    """The Pareto front's picture and table; None where one figure is sought, or nothing ran."""
    trials = pareto.front(run)
    if not trials:
        path.unlink(missing_ok=True)
        return None
    figure = front.front_figure(run)
    _replace(path, figures.png(figure))
    return {
        "svg": Markup(front.inline_svg(figure)),
        "successes": len(pareto.comparable(run)),
        "rows": [_row(run, trial) for trial in trials],
    }


def _parameters(run: Run) -> tuple[list[str], dict[str, Any]]:
    """Parameters that differ between trials, in the space's order, and those that do not."""
    configs = [trial.config for trial in run.trials.values()]
    names = list(dict.fromkeys(name for config in configs for name in config))
    varied = [n for n in names if any(c.get(n) != configs[0].get(n) for c in configs)]
    if not varied:
        return names, {}  # one trial only: a table without parameters would say nothing
    return varied, {name: configs[0].get(name) for name in names if name not in varied}


def _metrics(run: Run, frame: pd.DataFrame) -> list[dict[str, str]]:
    """Key figures that the trainer gave, other than the objective itself."""
    return [
        {"key": key, "label": quantities.label(key)}
        for key in KEY_METRICS
        if f"m:{key}" in frame.columns and key != run.objective_key
    ]


def _row(run: Run, trial: Trial) -> dict[str, Any]:
    """One line of a table of trials."""
    folder = run.directory / "trials" / f"{trial.number:04d}"
    running = trial.running
    last = trial.attempts[-1] if trial.attempts else None
    key = run.objective_key
    return {
        "number": trial.number,
        "state": trial.kind or ("running" if running else "waiting"),
        "early": trial.early,
        "measurements": [
            quantities.scaled(key, x) for x in trial.measurements if len(trial.measurements) > 1
        ],
        "tone": "ok" if trial.ok else "bad" if trial.kind in TOLD else "off",
        "objective": quantities.scaled(key, trial.objective or 0.0) if succeeded(trial) else None,
        "more": [_scaled(key, trial.objectives.get(key)) for key, _ in run.goals[1:]],
        "config": trial.config,
        "metrics": {key: _metric(trial, key) for key in KEY_METRICS},
        "elapsed_s": trial.elapsed_s if trial.attempts else None,
        "ended_t": ended_t(trial),
        "attempts": len(trial.attempts),
        "nodes": last.nodes if last else (),
        "message": trial.message,
        "tail": _tail(trial.stderr_tail),
        "links": [
            (name, f"../trials/{folder.name}/{file}")
            for name, file in LINKS.items()
            if (folder / file).exists()
        ],
    }


def _metric(trial: Trial, key: str) -> float | None:
    value: Any = trial.result
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return quantities.scaled(key, value)


def _scaled(key: str, value: float | None) -> float | None:
    return None if value is None else quantities.scaled(key, value)


def _tail(text: str) -> str:
    return "\n".join(text[-TAIL_CHARACTERS:].splitlines()[-TAIL_LINES:])


def _value(value: Any) -> str:
    """A parameter's value as YAML writes it."""
    if value is None:
        return "–"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _image(path: Path, figure: Figure) -> str:
    """Write the figure beside the page; return it as a data URL."""
    data = figures.png(figure)
    _replace(path, data)
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _write_best(run: Run, path: Path) -> str:
    """Write what ``meshtune train`` needs to train with the best configuration.

    Returns:
        Why it could not be written; empty if it was.
    """
    path.unlink(missing_ok=True)  # an earlier best must not outlive a reason not to write one
    if run.best is None:
        return "no trial has succeeded"
    folder = run.directory / "trials" / f"{run.best.number:04d}"
    try:
        spec = json.loads((folder / "trial.json").read_text())
        content: dict[str, Any] = {
            "meshtune_best": 1,
            "objective": {
                "maximize" if run.maximize else "minimize": run.objective_key,
                "value": run.best.objective,
            },
            "parameters": run.best.config,
            "num_nodes": spec["num_nodes"],
            "ranks_per_node": spec["ranks_per_node"],
        }
        if spec["argv"][1:3] == ["-m", "trainer"]:
            content["train"] = json.loads((folder / "config.json").read_text())
        else:
            # The trial's own folder, wherever the command has it, becomes that of the training.
            here = str(folder.absolute())
            content["command"] = [a.replace(here, "{trial_dir}") for a in spec["argv"]]
        if len(run.goals) > 1:
            content["front"] = front.as_yaml(run)
        if spec["env"]:
            content["env"] = spec["env"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"the files of trial {run.best.number} in {folder} cannot be read: {error}"
    space = json.dumps(run.space)  # on one line, whatever it is
    head = f"# The best of {len(run.trials)} trials of {space}: trial {run.best.number}.\n"
    text = head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    _replace(path, text.encode())
    return ""


def _replace(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(path.name + ".part")
    partial.write_bytes(data)
    partial.replace(path)
