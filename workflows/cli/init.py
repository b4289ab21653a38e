"""``meshtune init``: a first search space."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import search_spaces
from foundation.messages import shown
from workflows.cli.arguments import Commands, UsageError, add, command, path, positive
from workflows.cli.model_space import CLUSTER, MODEL, option

ASKED = {
    "adapter": "trainer",
    "model": "model (a name, *.yaml, or Hugging Face's config.json)",
    "cluster": "cluster (a name, or *.yaml)",
}


def add_commands(commands: Commands) -> None:
    parser = command(commands, "init", init, "Write a first search space for a well-known trainer.")
    default = Path("space.yaml")
    add(parser, "file", path, "FILE.yaml", f"default: {default}", nargs="?", default=default)
    add(parser, "--adapter", str, "NAME", "the trainer: megatron-lm, torchtitan ...")
    add(parser, "--model", str, "MODEL", MODEL)
    add(parser, "--cluster", str, "CLUSTER", CLUSTER)
    add(parser, "--nodes", positive, "N", "default: the launch script's, or 1", default=0)
    add(parser, "--entry", str, "SCRIPT", "script that the trainer runs", default="")
    add(parser, "--args", path, "FILE", "a launch script to read arguments and model from")
    add(parser, "--config", str, "FILE", "the trainer's own configuration file", default="")


def init(arguments: Namespace) -> int:
    """Write a space file; asks for missing options."""
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
    except search_spaces.SpaceArgumentError as error:
        raise UsageError(f"{option(error.argument)}: {error.what}") from None
    file.write_text(text)
    print(*notes, sep="\n")
    print(f"wrote {shown(file)}; next: meshtune check {shown(file)}")
    return 0


def _ask(arguments: Namespace) -> None:
    """Ask for missing options on a terminal."""
    missing = [name for name in ASKED if getattr(arguments, name) is None]
    if arguments.args is not None or arguments.config:  # either has the model
        missing = [name for name in missing if name != "model"]
    if missing and not sys.stdin.isatty():
        names = " and ".join(f"--{name}" for name in missing)
        raise UsageError(f"{names} missing; give them, as there is no terminal to ask on")
    for name in missing:
        if name != "model":
            print(f"{ASKED[name]}: {', '.join(sorted(search_spaces.shipped_records(name)))}")
        setattr(arguments, name, input(f"{ASKED[name]}? ").strip())
