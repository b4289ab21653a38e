"""``meshtune watch``: a run's page in a browser, while the search goes on."""

from __future__ import annotations

import sys
import time
from argparse import Namespace

from workflows.cli.arguments import Commands, command, folder, positive


def add_commands(commands: Commands) -> None:
    """Add this group's commands."""
    text = "Serve a run's report to a browser on this machine, updated while the search runs."
    parser = command(commands, "watch", watch, text)
    parser.add_argument("run", type=folder, metavar="RUN")
    parser.add_argument("--port", type=positive, metavar="N", help="default: any free port")


def watch(arguments: Namespace) -> int:
    """Serve a run's page until Ctrl-C."""
    from analysis import read_run, write_report
    from foundation.messages import printable
    from workflows.cli.errors import UsageError
    from workflows.watch import LOOKED_S, PageError, Pages, serving

    read_run(arguments.run)  # an error now
    port = arguments.port or 0
    if port > 65535:
        raise UsageError(f"--port {port}: accepted a port up to 65535")
    home = arguments.run
    pages = Pages(home, lambda copy: write_report(copy, home=home))
    with serving(pages, port) as address:
        print(f"{address}\n(only on this machine; Ctrl-C ends it)", flush=True)
        said = ""  # of what lasts; once
        while True:
            try:
                said = "" if pages.refresh() else said
            except (PageError, OSError) as error:  # being written, moved, repaired
                if str(error) != said:
                    said = str(error)
                    print(f"meshtune: {printable(said)}", file=sys.stderr)
            time.sleep(LOOKED_S)
