"""``meshtune report``, ``explain`` and ``watch``: the results of a search, and the reasons."""

from __future__ import annotations

import errno
import re
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import analysis
from foundation.files import explained
from foundation.messages import printable, shown
from workflows.cli.arguments import UsageError
from workflows.cli.json_output import of_explanation, of_run, print_json
from workflows.cli.working import Working


def explain(arguments: Namespace) -> None:
    run = analysis.read_run(arguments.run)
    trial = run.trials.get(arguments.trial)
    if trial is None:
        there = f"has trials 1 to {max(run.trials)}" if run.trials else "has no trial yet"
        raise UsageError(f"{shown(arguments.run)} {there}, and no trial {arguments.trial}")
    with Working("calibrating the cost model"):
        lines = analysis.explain_trial(run, trial)
    if arguments.json:
        print_json("explain", of_explanation(run, trial, lines))
        return
    print(*map(printable, lines), sep="\n")


def report(arguments: Namespace) -> None:
    # Fail before slow imports.
    runs = [analysis.read_results(each, arguments.study) for each in arguments.runs]
    if len(runs) > 1:
        if arguments.out:
            raise UsageError("--out: several runs are compared, and no page is written")
        if arguments.json:
            print_json("report", {"runs": [_as_json(run) for run in runs]})
        else:
            print(*map(printable, analysis.Comparison(runs).text()), sep="\n")
        return
    if arguments.out and not runs[0].origin:
        raise UsageError(
            "--out: the page of a run is in its own folder; leave it out, or report a copy of the "
            "run; `meshtune watch RUN` writes nothing"
        )
    with Working("reading the run", lines=True) as tell:
        page = _page(runs[0], arguments.out, tell)
    if arguments.json:
        best = page.with_name("best.yaml")
        files = {"page": str(page), "best_yaml": str(best) if best.exists() else None}
        print_json("report", {**files, **_as_json(runs[0])})
    else:
        print(page)


def _page(run: analysis.Run, out: Path | None, tell: Callable[[str], object]) -> Path:
    if not run.origin:
        try:
            return analysis.write_report(run, tell=tell)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS):
                raise
            raise UsageError(
                f"{shown(run.directory)}: the page of a run is in its folder, which cannot be "
                f"written ({error.strerror}): `meshtune watch RUN` shows it and writes nothing; or "
                "report a copy of the folder"
            ) from None
    out = out or Path(re.sub(r"[^\w.-]+", "_", run.space) + "-report")
    try:
        return analysis.write_report(run, folder=out, tell=tell)
    except FileExistsError as error:
        raise UsageError(f"{shown(str(error))}, or choose another --out") from None


def _as_json(run: analysis.Run) -> dict[str, Any]:
    from workflows.cli.run import state_of
    from workflows.search.budget import Budget

    if run.origin:
        return of_run(run, Budget(), run.last_t, "ended", running=False)
    driver, budget = run.folder.driver, Budget.of(run.folder.frozen_space())
    return of_run(run, budget, run.last_t, state_of(run, driver), bool(driver))


def watch(arguments: Namespace) -> None:
    from workflows.watch import LOOKED_S, PageError, Site, serving

    for run in arguments.runs:
        analysis.read_run(run)  # an error now
    port = arguments.port or 0
    if port > 65535:
        raise UsageError(f"--port {port}: accepted a port up to 65535")
    site = Site(arguments.runs, analysis.write_report)
    with serving(site, port) as address:
        print(f"{address}\n(reachable from this machine only; Ctrl-C stops it)", flush=True)
        said: dict[str, str] = {}  # errors that last are printed once
        while True:
            for name, pages in site.pages.items():
                try:
                    if pages.refresh():
                        said.pop(name, None)
                except (PageError, OSError) as error:  # being written, moved, repaired
                    text = explained(error) if isinstance(error, OSError) else str(error)
                    if text != said.get(name):
                        said[name] = text
                        print(f"meshtune: {printable(said[name])}", file=sys.stderr)
            time.sleep(LOOKED_S)
