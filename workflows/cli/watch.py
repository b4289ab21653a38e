"""``meshtune watch``: a run's report in a browser, updated while the search runs."""

from __future__ import annotations

import sys
import time
from argparse import Namespace

import analysis
from foundation.files import explained
from foundation.messages import printable
from workflows.cli.arguments import Commands, UsageError, command, folder, positive


def add_commands(commands: Commands) -> None:
    text = "Serve a run's report to a browser on this machine, updated while the search runs."
    parser = command(commands, "watch", watch, text)
    parser.add("run", folder, "RUN")
    parser.add("--port", positive, "N", "default: any free port")


def watch(arguments: Namespace) -> None:
    from workflows.watch import LOOKED_S, PageError, Pages, serving

    analysis.read_run(arguments.run)  # an error now
    port = arguments.port or 0
    if port > 65535:
        raise UsageError(f"--port {port}: accepted a port up to 65535")
    home = arguments.run
    pages = Pages(home, lambda copy: analysis.write_report(copy, home=home))
    with serving(pages, port) as address:
        print(f"{address}\n(reachable from this machine only; Ctrl-C stops it)", flush=True)
        said = ""  # an error that lasts is printed once
        while True:
            try:
                said = "" if pages.refresh() else said
            except (PageError, OSError) as error:  # being written, moved, repaired
                text = explained(error) if isinstance(error, OSError) else str(error)
                if text != said:
                    said = text
                    print(f"meshtune: {printable(said)}", file=sys.stderr)
            time.sleep(LOOKED_S)
