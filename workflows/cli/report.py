"""``meshtune report``, ``explain`` and ``to-optuna``: what a run has found, and why."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workflows.cli.arguments import Commands, command, folder, positive
from workflows.cli.json_output import add_json, of_run, print_json
from workflows.cli.working import Working

if TYPE_CHECKING:
    from analysis import Content, Run, Section


def add_commands(commands: Commands) -> None:
    """Add this group's commands."""
    text = "Write RUN/report/index.html; of several runs, print what each found, side by side."
    parser = command(commands, "report", report, text)
    parser.add_argument("runs", type=folder, nargs="+", metavar="RUN")
    add_json(parser)

    text = "Say why a trial was proposed, what was expected of it, and what came."
    parser = command(commands, "explain", explain, text)
    parser.add_argument("run", type=folder, metavar="RUN")
    parser.add_argument("trial", type=positive, metavar="N", help="its number")

    text = "Copy a run's trials into a study of Optuna's, for its dashboard."
    parser = command(commands, "to-optuna", to_optuna, text)
    parser.add_argument("run", type=folder, metavar="RUN")
    parser.add_argument("storage", metavar="STORAGE", help="of Optuna's: sqlite:///runs.db")
    parser.add_argument("--name", default="", help="of the study; default: the run's folder's")


def to_optuna(arguments: Namespace) -> int:
    """Copy a run into a storage of Optuna's; what is there already stays."""
    from analysis import counted, read_run
    from workflows.cli.errors import UsageError
    from workflows.to_optuna import to_optuna as copied

    run = read_run(arguments.run)
    name = arguments.name or arguments.run.absolute().name
    try:
        with Working("copying the trials"):
            added, known = copied(run, arguments.storage, name)
    except ValueError as error:
        raise UsageError(f"{arguments.storage}: {error}") from None
    said = f"{counted(added, 'trial')} added to the study {name}"
    print(said + (f", {known} were there already" if known else ""))
    print(f"optuna-dashboard {arguments.storage} shows it")
    return 0


def explain(arguments: Namespace) -> int:
    """Print what there is to say of one trial."""
    from analysis import explain_trial, read_run
    from slurm import printable, shown
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
    from analysis import comparison_text, read_run
    from slurm import printable

    runs = [read_run(each) for each in arguments.runs]  # an error before slow imports
    if len(runs) > 1:
        if arguments.json:
            return print_json({"runs": [_as_json(run) for run in runs]})
        for line in comparison_text(runs):
            print(printable(line))
        return 0
    with Working("reading the run", lines=True) as tell:
        page = written(runs[0].directory, tell)
    if not arguments.json:
        print(page)
        return 0
    best = page.with_name("best.yaml")
    files = {"page": str(page), "best_yaml": str(best) if best.exists() else None}
    return print_json({**files, **_as_json(runs[0])})


def _as_json(run: Run) -> dict[str, Any]:
    from analysis import RunFolder, driver_of
    from workflows.cli.run import state_of
    from workflows.search.budget import Budget

    driver = driver_of(run.directory)
    budget = Budget.of(RunFolder(run.directory).frozen_space())
    return of_run(run, budget, run.last_t, state_of(run, driver), bool(driver))


def written(run_dir: Path, tell: Callable[[str], object], home: Path | None = None) -> Path:
    """Write a report, telling which of its parts is being made; see ``write_report``."""
    from analysis import SECTIONS, CrossValidation, cross_validated, write_report

    def validated(run: Run) -> CrossValidation | None:
        tell("comparing the cost model with the trials")
        return cross_validated(run)

    def told(section: Section) -> Section:
        def draw(content: Content) -> str:
            tell(f"report: {section.heading(content)}")
            return section.draw(content)

        return replace(section, draw=draw)

    return write_report(run_dir, [told(section) for section in SECTIONS], validated, home)
