"""Parsers of commands, the types of their arguments, and what several commands do with them."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import slurm
from foundation.messages import listed, nearest, shown

_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")
_UNKNOWN = re.compile(r"unrecognized arguments: (--[\w-]+)")
_WORD = re.compile(r"[\w-]+")
GENERIC = "generic"  # the site profile where none is named
MOST = 10**9  # largest count
DIGITS = 18  # of a seed
LONGEST_NAME, LONGEST_PATH = 255, 4000  # of a file, in bytes


class UsageError(Exception):
    """Arguments that do not fit together; the message names the remedy."""


class Parser(ArgumentParser):
    """A parser of commands or of one; its errors (exit code 2) say what was probably meant."""

    commands: Mapping[str, Parser] = {}  # every command's parser, by name
    _intermixed = False  # options are parsed first, then the other words

    def error(self, message: str) -> NoReturn:
        found = _CHOICE.search(message)
        known = _WORD.findall(found[2]) if found else [*self._option_string_actions]
        if found := found or _UNKNOWN.search(message):
            users = [n for n, p in self.commands.items() if found[1] in p._option_string_actions]
            message += (
                f"; it is an option of {listed(users)}" if users else nearest(found[1], known)
            )
        super().error(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse what it knows; other words are an error of the command, not of the program."""
        found, rest = super().parse_known_args(args, namespace)
        if self._intermixed:
            return found, rest
        if rest and not self._subparsers:  # words after an option, as in `add --whole RUN`
            self._intermixed = True
            found, rest = self.parse_known_intermixed_args(args, namespace)
            self._intermixed = False
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest

    def add(self, arguments: Iterable[Mapping[str, Mapping[str, Any]]]) -> None:
        """Add arguments in the form of ``commands.yaml``."""
        places: dict[str, Any] = {"": self}
        for name, told in (item for each in arguments for item in each.items()):
            keys = dict(told)
            if (group := keys.pop("group", "")) not in places:
                places[group] = self.add_argument_group(group)
            if "type" in keys:
                if keys["type"] == "folder" and isinstance(keys.get("default"), str):
                    keys["default"] = Path(keys["default"])  # checked where it is needed
                keys["type"] = TYPES[keys["type"]]
            places[group].add_argument(name, **keys)


def archive_folder() -> Path:
    """The folder of kept runs that ``MESHTUNE_ARCHIVE`` names, or the user's own."""
    try:
        return Path(os.environ.get("MESHTUNE_ARCHIVE") or "~/.meshtune/archive").expanduser()
    except RuntimeError as error:  # no home
        raise UsageError(f"{error}: let MESHTUNE_ARCHIVE name a folder") from None


def launcher_options(arguments: Namespace, num_nodes: int) -> slurm.LauncherOptions:
    """How trials of so many nodes get processes, by a command's options."""
    return slurm.LauncherOptions(num_nodes, arguments.site, arguments.hostfile, arguments.exclude)


def launched(arguments: Namespace, num_nodes: int) -> closing[slurm.Launcher]:
    """A context with the launcher that these options name; its end closes it."""
    from workflows.launching import launcher_name

    options = launcher_options(arguments, num_nodes)
    return closing(slurm.make_launcher(launcher_name(arguments.launcher), options))


def check_site(arguments: Namespace) -> None:
    """Raise SiteError for a bad ``--site`` now, also if its launcher would not read it."""
    if arguments.site != GENERIC:
        slurm.Site.load(arguments.site)


def path(text: str) -> Path:
    """A path of a file or folder, which need not exist."""
    try:
        longest_name = max((len(part.encode()) for part in text.split("/")), default=0)
    except UnicodeEncodeError:
        raise ArgumentTypeError(f"'{shown(text, 60)}' is not UTF-8: rename it") from None
    if not text or "\0" in text or longest_name > LONGEST_NAME or len(text) > LONGEST_PATH:
        raise ArgumentTypeError(f"'{shown(text, 60)}' is not a path")
    return Path(text)


def folder(text: str) -> Path:
    """A path of a folder, which need not exist."""
    where = path(text)
    if where.exists() and not where.is_dir():
        raise ArgumentTypeError(f"'{shown(text, 60)}' is not a folder")
    return where


def share(text: str) -> float:
    value = _number(text)
    if not 0 <= value < 1:
        raise ArgumentTypeError(f"'{shown(text, 60)}' is not a share: from 0 to less than 1")
    return value


def source(text: str) -> str:
    """A path of a file or folder, which need not exist, or the URL of a database."""
    return text if "://" in text else str(path(text))


def positive(text: str) -> int:
    if not text.isdecimal() or len(text) > DIGITS or not 1 <= int(text) <= MOST:
        raise ArgumentTypeError(f"'{shown(text, 60)}' is not a positive whole number up to {MOST}")
    return int(text)


def counts(text: str) -> list[int]:
    return [positive(item) for item in text.split(",")]


def tokens(text: str) -> float:
    """A number of training tokens, such as ``300e9``."""
    value = _number(text)
    if not 1 <= value < float("inf"):
        raise ArgumentTypeError(f"'{shown(text, 60)}' is not a number of tokens")
    return value


def seed(text: str) -> int:
    if not text.isdecimal() or len(text) > DIGITS:
        words = f"0 or more, with at most {DIGITS} digits"
        raise ArgumentTypeError(f"'{shown(text, 60)}' is not a whole number of {words}")
    return int(text)


def _number(text: str) -> float:
    """A number; -1, which no option accepts, for a text that is none."""
    try:
        return float(text)
    except ValueError:
        return -1.0


TYPES: dict[str, Callable[[str], Any]] = {
    each.__name__: each
    for each in (int, path, folder, share, source, positive, counts, tokens, seed)
}
"""Parsers of arguments' values, by their names in ``commands.yaml``."""
