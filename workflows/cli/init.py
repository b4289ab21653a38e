"""``meshtune init``: a first search space."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from workflows.cli.arguments import Commands, command, path, positive

ASKED = {
    "adapter": "trainer",
    "model": "model (a name, *.yaml, or Hugging Face's config.json)",
    "cluster": "cluster (a name, or *.yaml)",
}


def add_commands(commands: Commands) -> None:
    """Add this group's commands."""
    parser = command(commands, "init", init, "Write a first search space for a well-known trainer.")
    parser.add_argument(
        "file", type=path, nargs="?", default=Path("space.yaml"), metavar="FILE.yaml",
        help="default: space.yaml",
    )  # fmt: skip
    parser.add_argument(
        "--adapter", metavar="NAME", help="the trainer: megatron-lm, torchtitan ..."
    )
    parser.add_argument(
        "--model", metavar="MODEL", help="a Hugging Face config.json, a *.yaml, or a shipped model"
    )
    parser.add_argument("--cluster", metavar="CLUSTER", help="a *.yaml, or a shipped cluster")
    parser.add_argument(
        "--nodes", type=positive, default=0, metavar="N", help="default: the launch script's, or 1"
    )
    parser.add_argument(
        "--entry", default="", metavar="SCRIPT", help="script that the trainer runs"
    )
    parser.add_argument(
        "--args", type=path, metavar="FILE", help="a launch script to read arguments and model from"
    )
    parser.add_argument(
        "--config", default="", metavar="FILE", help="the trainer's own configuration file"
    )


def init(arguments: Namespace) -> int:
    """Write a space file; what is not given is asked for."""
    from foundation.messages import shown
    from search_spaces import SpaceArgumentError
    from workflows.cli.errors import UsageError
    from workflows.cli.model_space import option
    from workflows.first_space import Wanted, first_space

    file: Path = arguments.file
    if file.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{shown(file)}: accepted a file *.yaml")
    if file.exists():
        raise UsageError(f"{shown(file)} exists; remove it, or name another file")
    _ask(arguments)
    wanted = Wanted(
        arguments.adapter,
        arguments.model or "",
        arguments.cluster,
        arguments.nodes,
        arguments.entry,
        arguments.args,
        arguments.config,
    )
    try:
        text, notes = first_space(wanted, str(file))
    except SpaceArgumentError as error:
        raise UsageError(f"{option(error.argument)}: {error.what}") from None
    file.write_text(text)
    print(*notes, sep="\n")
    print(f"{shown(file)}; next: meshtune check {shown(file)}")
    return 0


def _ask(arguments: Namespace) -> None:
    """Ask for what is missing, where somebody can answer."""
    from search_spaces import shipped_records
    from workflows.cli.errors import UsageError

    told = arguments.args is not None or arguments.config
    missing = [
        name
        for name in ASKED
        if getattr(arguments, name) is None and not (name == "model" and told)
    ]
    if missing and not sys.stdin.isatty():
        names = " and ".join(f"--{name}" for name in missing)
        raise UsageError(f"{names} missing: there is no terminal to ask on, so give them")
    for name in missing:
        if name in ("adapter", "cluster"):
            print(f"{ASKED[name]}: {', '.join(shipped_records(name))}")
        setattr(arguments, name, input(f"{ASKED[name]}? ").strip())
