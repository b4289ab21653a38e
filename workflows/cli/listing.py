"""``meshtune list``: names that spaces and options accept; the shell completes them, too."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from functools import partial

import search_spaces
import slurm
from workflows.cli.json_output import print_json

NAME_WIDTH = 28  # of the first column, unless a name is longer
SHIPPED = ("space", "model", "cluster", "adapter", "framework")


def show(arguments: Namespace) -> None:
    every = {arguments.kind} if arguments.kind else KINDS
    names = {kind: KINDS[kind]() for kind in every}
    if arguments.json:
        print_json("list", {"kind": arguments.kind, "names": names.get(arguments.kind, names)})
        return
    found = names.get(arguments.kind) or {kind: ", ".join(each) for kind, each in names.items()}
    width = max([NAME_WIDTH, *(len(name) for name in found)])
    for name, words in found.items():
        print(f"{name:{width}}  {words}".rstrip())


def _shipped(kind: str) -> dict[str, str]:
    return search_spaces.shipped_records(kind)


def _policies() -> dict[str, str]:
    from workflows.optimizer.registry import POLICIES

    return POLICIES.titles()


def _launchers() -> dict[str, str]:
    return {**slurm.LAUNCHERS.titles(), "simulate": "A simulated cluster, priced by the cost model"}


# Names of facades are looked up on demand, so that nothing heavy is imported before.
KINDS: dict[str, Callable[[], dict[str, str]]] = {
    **{f"{kind}s": partial(_shipped, kind) for kind in SHIPPED},
    "sites": lambda: slurm.Site.shipped(),
    "launchers": _launchers,
    "policies": _policies,
}


def complete(parser: ArgumentParser) -> None:
    """Answer a shell that asks for completions, and exit; else do nothing."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    try:
        from argcomplete import autocomplete
    except ImportError:
        return
    for commands in parser._subparsers._group_actions if parser._subparsers else ():
        for each in dict(commands.choices or {}).values():
            for action in each._actions:
                kind = {"to": "adapters", "policy": "policies"}.get(action.dest, f"{action.dest}s")
                if kind in KINDS:
                    action.completer = _completer(kind)
    autocomplete(parser)


def _completer(kind: str) -> Callable[..., Iterable[str]]:
    def names(prefix: str, **_: object) -> Iterable[str]:
        from argcomplete.completers import FilesCompleter

        return [*KINDS[kind](), *FilesCompleter()(prefix)]

    return names
