"""``meshtune archive``: runs that a team keeps, and open landscapes made of them."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from foundation.messages import printable, shown
from workflows.cli.arguments import UsageError, archive_folder


def archive(arguments: Namespace) -> None:
    from analysis import MissingFactError, NotPricedError, RunFolder, read_run
    from search_spaces import load_space
    from workflows.replay import archive as kept
    from workflows.replay.export import export

    where: Path = (arguments.archive or archive_folder()).absolute()
    action, run = arguments.action, arguments.run
    if (action == "list") != (run is None):
        raise UsageError(f"archive {action}: accepted are: add RUN, list, export RUN")
    if action == "list":
        for entry, space in kept.entries(where):
            told = space if isinstance(space, str) else ", ".join((space.name, *kept.kind(space)))
            print(printable(f"{entry.name}: {told}"))
    elif action == "add":
        print(shown(kept.add(where, run, arguments.whole)))
    elif not arguments.license or arguments.out is None:
        raise UsageError("archive export: needs --out FILE.csv and --license of the owner's choice")
    else:
        source = RunFolder(run)
        trials = read_run(run) if source.started else kept.run_in(run)
        space = load_space(source.space_file, frozen=True)
        try:
            count = export(trials, space, arguments.license, arguments.out)
        except (NotPricedError, MissingFactError) as error:
            raise UsageError(
                f"{shown(source.space_file)}: {error}: a landscape needs it; add keeps the run"
            ) from error
        print(f"{shown(arguments.out)}: {count:,} configurations")
