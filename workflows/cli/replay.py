"""``meshtune replay``: policies compared on recorded measurements."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from foundation.messages import without_secrets
from workflows.cli.arguments import (
    Commands,
    UsageError,
    add,
    add_policy,
    add_study,
    command,
    path,
    positive,
    source,
)

if TYPE_CHECKING:
    from workflows.optimizer.policy import Policy
    from workflows.replay.landscape import Landscape


def add_commands(commands: Commands) -> None:
    text = "Replay a search against a recorded sweep, or the trials of a search."
    parser = command(commands, "replay", replay, text)
    text = "a sweep, RUN/results.csv, DeepHyper's, or an Optuna storage (sqlite:///x.db)"
    add(parser, "table", source, "TABLE.csv", text)
    add_study(parser)
    add_policy(parser)
    add(parser, "--parallel", positive, "N", "concurrent trials; default: 1", default=1)
    add(parser, "--seeds", positive, "N", "default: 5", default=5)
    text = "rows with equal values in these are one search problem; default: model and machine"
    add(parser, "--landscape", str, "COLUMN,...", text)
    add(parser, "--json", path, "FILE", "also write the metrics to this file")


def replay(arguments: Namespace) -> int:
    """Replay a policy against a recorded table and print how many trials it needs."""
    from workflows.replay import play as replaying
    from workflows.replay.landscapes import recorded

    columns = [name.strip() for name in (arguments.landscape or "").split(",") if name.strip()]
    out: Path | None = arguments.json
    if out is not None and not out.absolute().parent.is_dir():
        raise UsageError(f"--json {out}: there is no folder {out.parent}")
    found = recorded(arguments.table, columns, arguments.study)

    def make(landscape: Landscape, seed: int) -> Policy:
        return replaying.policy_for(landscape, arguments.policy, seed)

    metrics = replaying.replay(found.landscapes, make, arguments.seeds, arguments.parallel)
    print(replaying.text(metrics))
    if found.left_out:
        print(replaying.left_out(found.left_out))
    if out is not None:
        how = {name: getattr(arguments, name) for name in ("policy", "parallel", "seeds")}
        content = {"table": without_secrets(arguments.table), **how, "left_out": found.left_out}
        out.write_text(json.dumps({**content, **metrics}, indent=2))
    return 0
