"""``meshtune list``: what a space and an option may name."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterable

from workflows.cli.arguments import Commands, command

NAME_WIDTH = 28  # of the first column, unless a name is longer


def add_commands(commands: Commands) -> None:
    """Add this group's commands."""
    text = "List the names that spaces and options take: models, clusters, adapters, policies ..."
    parser = command(commands, "list", show, text)
    parser.add_argument("kind", choices=sorted(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--json", action="store_true", help="names and what they are, as JSON")


def show(arguments: Namespace) -> int:
    """Print names and what they are."""
    found = KINDS[arguments.kind]()
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0
    width = max([NAME_WIDTH, *(len(name) for name in found)])
    for name, words in found.items():
        print(f"{name:{width}}  {words}".rstrip())
    return 0


def _shipped(kind: str) -> Callable[[], dict[str, str]]:
    def names() -> dict[str, str]:
        from search_spaces import shipped_records

        return shipped_records(kind)

    return names


def _only(names: Iterable[str]) -> dict[str, str]:
    return dict.fromkeys(names, "")


def _sites() -> dict[str, str]:
    from slurm import shipped_sites

    return _only(shipped_sites())


def _frameworks() -> dict[str, str]:
    from search_spaces import FRAMEWORKS

    return _only(FRAMEWORKS)


def _policies() -> dict[str, str]:
    from workflows.optimizer.registry import policy_names

    return _only(policy_names())


def _launchers() -> dict[str, str]:
    from slurm import launcher_names

    return _only(launcher_names())


KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "spaces": _shipped("space"),
    "models": _shipped("model"),
    "clusters": _shipped("cluster"),
    "adapters": _shipped("adapter"),
    "frameworks": _frameworks,
    "sites": _sites,
    "launchers": _launchers,
    "policies": _policies,
}
