"""``meshtune replay`` and ``archive``: policies on recorded measurements; runs that are kept."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from foundation.messages import printable, shown, without_secrets
from workflows.cli.arguments import UsageError, archive_folder
from workflows.cli.working import Working

if TYPE_CHECKING:
    from workflows.optimizer.policy import Policy
    from workflows.replay.landscape import Landscape


def replay(arguments: Namespace) -> None:
    from workflows.replay import play as replaying
    from workflows.replay.landscapes import recorded, repeats

    columns = [name.strip() for name in (arguments.landscape or "").split(",") if name.strip()]
    out: Path | None = arguments.json
    if out is not None and not out.absolute().parent.is_dir():
        raise UsageError(f"--json {out}: there is no folder {out.parent}")
    with Working(f"reading {without_secrets(arguments.table)}") as tell:
        found, left_out = recorded(arguments.table, columns, arguments.study)

        def policy(landscape: Landscape, seed: int) -> Policy:
            tell(f"{printable(landscape.key)}, seed {seed + 1} of {arguments.seeds}")
            return replaying.policy_for(landscape, arguments.policy, seed)

        metrics = replaying.replay(found, policy, arguments.seeds, arguments.parallel)
    print(replaying.text(metrics))
    if left_out:
        print(replaying.left_out(left_out))
    if told := repeats(found):
        print(printable(told))
    if out is not None:
        how = {name: getattr(arguments, name) for name in ("policy", "parallel", "seeds")}
        content = {"table": without_secrets(arguments.table), **how, "left_out": left_out}
        out.write_text(json.dumps({**content, **metrics}, indent=2))


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
        if not (entries := list(kept.entries(where))):
            print(printable(f"{where} keeps no run: archive add RUN adds one"))
        for entry, space in entries:
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
