"""``meshtune watch``: reports of runs in a browser, updated while the searches run."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

import analysis
from foundation.files import explained
from foundation.messages import printable
from workflows.cli.arguments import UsageError


def watch(arguments: Namespace) -> None:
    from workflows.watch import LOOKED_S, PageError, Site, serving

    for run in arguments.runs:
        analysis.read_run(run)  # an error now
    port = arguments.port or 0
    if port > 65535:
        raise UsageError(f"--port {port}: accepted a port up to 65535")
    site = Site.of(arguments.runs, analysis.write_report, _compared)
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


def _compared(runs: Mapping[str, Path], every: Sequence[str]) -> str:
    read = {name: analysis.read_run(folder) for name, folder in runs.items()}
    return analysis.Comparison(list(read.values())).page(list(read), every)
