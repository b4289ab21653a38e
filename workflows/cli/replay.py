"""``meshtune replay``: policies compared on recorded measurements."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from workflows.cli.arguments import (
    Commands,
    add_policy,
    add_study,
    command,
    path,
    positive,
    source,
)


def add_commands(commands: Commands) -> None:
    """Add this group's commands."""
    parser = command(
        commands,
        "replay",
        replay,
        "Replay a search against a recorded sweep, or the trials of a search.",
    )
    parser.add_argument(
        "table",
        type=source,
        metavar="TABLE.csv",
        help="a sweep, RUN/results.csv, DeepHyper's, or a storage of Optuna's (sqlite:///x.db)",
    )
    add_study(parser)
    add_policy(parser)
    parser.add_argument(
        "--parallel", type=positive, default=1, metavar="N", help="concurrent trials; default: 1"
    )
    parser.add_argument("--seeds", type=positive, default=5, metavar="N", help="default: 5")
    parser.add_argument(
        "--landscape",
        metavar="COLUMN,...",
        help="rows with equal values in these are one search problem; default: model and machine",
    )
    parser.add_argument(
        "--json", type=path, metavar="FILE", help="also write the figures to this file"
    )


def replay(arguments: Namespace) -> int:
    """Replay a policy against a recorded table and print how soon it comes near the best."""
    from foundation.messages import without_secrets
    from workflows.cli.errors import UsageError
    from workflows.replay import play as replaying
    from workflows.replay.landscapes import recorded

    columns = [name.strip() for name in (arguments.landscape or "").split(",") if name.strip()]
    out: Path | None = arguments.json
    if out is not None and not out.absolute().parent.is_dir():
        raise UsageError(f"--json {out}: there is no folder {out.parent}")
    found = recorded(arguments.table, columns, arguments.study)
    figures = replaying.replay(
        found.landscapes,
        lambda landscape, seed: replaying.policy_for(landscape, arguments.policy, seed),
        arguments.seeds,
        arguments.parallel,
    )
    print(replaying.text(figures))
    if found.left_out:
        print(replaying.left_out(found.left_out))
    if out is not None:
        how = {name: getattr(arguments, name) for name in ("policy", "parallel", "seeds")}
        content = {"table": without_secrets(arguments.table), **how, "left_out": found.left_out}
        out.write_text(json.dumps({**content, **figures}, indent=2))
    return 0
