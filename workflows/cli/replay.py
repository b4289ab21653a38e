"""``meshtune replay``: policies compared on recorded measurements."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from foundation.messages import without_secrets
from workflows.cli.arguments import UsageError


def replay(arguments: Namespace) -> None:
    from workflows.replay import play as replaying
    from workflows.replay.landscapes import recorded

    columns = [name.strip() for name in (arguments.landscape or "").split(",") if name.strip()]
    out: Path | None = arguments.json
    if out is not None and not out.absolute().parent.is_dir():
        raise UsageError(f"--json {out}: there is no folder {out.parent}")
    found = recorded(arguments.table, columns, arguments.study)

    metrics = replaying.replay(
        found.landscapes,
        lambda landscape, seed: replaying.policy_for(landscape, arguments.policy, seed),
        arguments.seeds,
        arguments.parallel,
    )
    print(replaying.text(metrics))
    if found.left_out:
        print(replaying.left_out(found.left_out))
    if out is not None:
        how = {name: getattr(arguments, name) for name in ("policy", "parallel", "seeds")}
        content = {"table": without_secrets(arguments.table), **how, "left_out": found.left_out}
        out.write_text(json.dumps({**content, **metrics}, indent=2))
