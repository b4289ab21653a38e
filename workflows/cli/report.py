"""``meshtune report`` and ``explain``: what a search has found, and why."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workflows.cli.arguments import Commands, add_study, command, folder, positive, source
from workflows.cli.json_output import add_json, of_run, print_json
from workflows.cli.working import Working

if TYPE_CHECKING:
    from analysis import Content, Run, Section


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
    from analysis import comparison_text
    from foundation.messages import printable
    from workflows.cli.errors import UsageError

    # An error before slow imports.
    runs = [_read(each, arguments.study) for each in arguments.runs]
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


def _read(where: str, study: str) -> Run:
    """A run of meshtune's, or what another program's search has left."""
    from analysis import RunFolder, is_storage, read_results, read_run

    file = Path(where)
    if is_storage(where) or (file.is_file() and not RunFolder(file.parent).started):
        return read_results(where, study)
    return read_run(file.parent if file.is_file() else file)


def _page(run: Run, out: Path | None, tell: Callable[[str], object]) -> Path:
    from analysis import SECTIONS, write_imported
    from foundation.messages import shown
    from workflows.cli.errors import UsageError

    if not run.origin:
        return written(run.directory, tell)
    name = re.sub(r"[^\w.-]+", "_", run.space)
    try:
        return write_imported(run, out or Path(f"{name}-report"), _told(SECTIONS, tell))
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


def written(run_dir: Path, tell: Callable[[str], object], home: Path | None = None) -> Path:
    """Write a report, telling which of its parts is being made; see ``write_report``."""
    from analysis import SECTIONS, CrossValidation, cross_validated, write_report

    def validated(run: Run) -> CrossValidation | None:
        tell("comparing the cost model with the trials")
        return cross_validated(run)

    return write_report(run_dir, _told(SECTIONS, tell), validated, home)


def _told(sections: Iterable[Section], tell: Callable[[str], object]) -> list[Section]:
    """The sections, each of which tells when it is drawn."""

    def told(section: Section) -> Section:
        def draw(content: Content) -> str:
            tell(f"report: {section.heading(content)}")
            return section.draw(content)

        return replace(section, draw=draw)

    return [told(section) for section in sections]
