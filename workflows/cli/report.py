"""``meshtune report`` and ``explain``: what a search has found, and why."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workflows.cli.arguments import Commands, add_study, command, folder, positive, source
from workflows.cli.json_output import add_json, of_run, print_json
from workflows.cli.working import Working

if TYPE_CHECKING:
    from analysis import Run


def add_commands(commands: Commands) -> None:
    """Add this group's commands."""
    text = "Write RUN/report/index.html; of several runs, print what each found, side by side."
    parser = command(commands, "report", report, text)
    parser.add_argument(
        "runs",
        type=source,
        nargs="+",
        metavar="RUN",
        help="its folder; or DeepHyper's results.csv, or a storage of Optuna's (sqlite:///x.db)",
    )
    add_study(parser)
    parser.add_argument(
        "--out",
        type=folder,
        metavar="DIR",
        help="of the page on DeepHyper's or Optuna's trials; default: NAME-report",
    )
    add_json(parser)

    text = "Explain why a trial was proposed, what was predicted for it, and what was measured."
    parser = command(commands, "explain", explain, text)
    parser.add_argument("run", type=folder, metavar="RUN")
    parser.add_argument("trial", type=positive, metavar="N", help="its number")


def explain(arguments: Namespace) -> int:
    """Print what there is to say of one trial."""
    from analysis import explain_trial, read_run
    from foundation.messages import printable, shown
    from workflows.cli.errors import UsageError

    run = read_run(arguments.run)
    trial = run.trials.get(arguments.trial)
    if trial is None:
        there = f"trials 1 to {max(run.trials)}" if run.trials else "no trial yet"
        raise UsageError(
            f"{shown(arguments.run)} has no trial {arguments.trial}: there are {there}"
        )
    with Working("calibrating the cost model"):
        lines = explain_trial(run, trial)
    for line in lines:
        print(printable(line))
    return 0


def report(arguments: Namespace) -> int:
    """Write a run's report and print its path, or compare several runs."""
    from analysis import comparison_text, read_results
    from foundation.messages import printable
    from workflows.cli.errors import UsageError

    # An error before slow imports.
    runs = [read_results(each, arguments.study) for each in arguments.runs]
    if len(runs) > 1:
        if arguments.out:
            raise UsageError("--out: several runs are compared, and no page is written")
        if arguments.json:
            return print_json({"runs": [_as_json(run) for run in runs]})
        for line in comparison_text(runs):
            print(printable(line))
        return 0
    if arguments.out and not runs[0].origin:
        raise UsageError("--out: the page of a run is in its own folder; leave it out")
    with Working("reading the run", lines=True) as tell:
        page = _page(runs[0], arguments.out, tell)
    if not arguments.json:
        print(page)
        return 0
    best = page.with_name("best.yaml")
    files = {"page": str(page), "best_yaml": str(best) if best.exists() else None}
    return print_json({**files, **_as_json(runs[0])})


def _page(run: Run, out: Path | None, tell: Callable[[str], object]) -> Path:
    from analysis import write_report
    from foundation.messages import shown
    from workflows.cli.errors import UsageError

    if not run.origin:
        return write_report(run, tell=tell)
    name = re.sub(r"[^\w.-]+", "_", run.space)
    try:
        return write_report(run, folder=out or Path(f"{name}-report"), tell=tell)
    except FileExistsError as error:
        raise UsageError(f"{shown(str(error))}, or choose another --out") from None


def _as_json(run: Run) -> dict[str, Any]:
    from analysis import RunFolder
    from workflows.cli.run import state_of
    from workflows.search.budget import Budget

    if run.origin:
        return of_run(run, Budget(), run.last_t, "ended", running=False)
    driver = run.folder.driver
    budget = Budget.of(RunFolder(run.directory).frozen_space())
    return of_run(run, budget, run.last_t, state_of(run, driver), bool(driver))
