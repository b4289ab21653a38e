"""Completion of commands, options and names by the shell, if argcomplete is installed."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Callable, Iterable

from workflows.cli.listing import KINDS

_OF = {  # argument: what it names, see ``meshtune list``
    "space": "spaces", "model": "models", "cluster": "clusters", "adapter": "adapters",
    "to": "adapters", "framework": "frameworks", "site": "sites", "launcher": "launchers",
    "policy": "policies",
}  # fmt: skip


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
                if action.dest in _OF:
                    action.completer = _completer(_OF[action.dest])
    autocomplete(parser)


def _completer(kind: str) -> Callable[..., Iterable[str]]:
    def names(prefix: str, **_: object) -> Iterable[str]:
        from argcomplete.completers import FilesCompleter

        return [*KINDS[kind](), *FilesCompleter()(prefix)]

    return names
