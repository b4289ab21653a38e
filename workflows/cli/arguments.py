"""Commands' parsers: the options that several commands share, and the types of their values."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import slurm
from foundation.messages import nearest, shown

_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")
_UNKNOWN = re.compile(r"unrecognized arguments: (--[\w-]+)")
_WORD = re.compile(r"[\w-]+")
Commands = Any  # argparse's subparsers, whose class has no public name
Handler = Callable[[Namespace], int | None]
GENERIC = "generic"  # the site profile where none is named
MOST = 10**9  # of anything that is counted
DIGITS = 18  # of a seed
LONGEST_NAME, LONGEST_PATH = 255, 4000  # of a file, in bytes
_POLICY = (
    "what chooses the configurations: meshtune (default: the cost model, corrected by the "
    "measurements and backed by Bayesian optimization), deephyper, optuna, cost-model (its ranking "
    "alone), sobol, random, or an installed one"
)


class UsageError(Exception):
    """Arguments that do not fit together; the message names the remedy."""


class Parser(ArgumentParser):
    """A command's parser; adds the options that several commands share."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2, and the command, choice or option that was probably meant."""
        found = _CHOICE.search(message)
        known = _WORD.findall(found[2]) if found else self._options()
        found = found or _UNKNOWN.search(message)
        super().error(message + (nearest(found[1], known) if found else ""))

    def _options(self) -> list[str]:
        """Options of this parser and of its commands."""
        commands = [action.choices for action in self._actions if isinstance(action.choices, dict)]
        below = [parser for choices in commands for parser in choices.values()]
        options = [option for action in self._actions for option in action.option_strings]
        return [*options, *(option for parser in below for option in parser._options())]

    def add(
        self, name: str, kind: Callable[[str], Any], metavar: str, text: str = "",
        group: Any = None, **more: Any,
    ) -> None:  # fmt: skip
        """Add an argument with a value; ``kind`` reads it from text, ``more`` is argparse's."""
        more |= {"type": kind, "metavar": metavar, "help": text or None}
        (group or self).add_argument(name, **more)

    def add_flag(self, name: str, text: str) -> None:
        self.add_argument(name, action="store_true", help=text)

    def add_json(self) -> None:
        self.add_flag("--json", "print JSON")

    def add_space(self) -> None:
        self.add("space", str, "SPACE", "a space file, or the name of a shipped one (tiny_cpu)")

    def add_launcher(self, known: str = "local, srun, mpiexec") -> None:
        """Add the options that say how trials get processes."""
        # Not ``choices``: installed distributions add launchers, and --help need not look for them.
        text = f"{known}, or an installed one; default: srun inside a Slurm allocation, else local"
        self.add("--launcher", str, "NAME", text)
        text = "list of hosts, for a launcher that needs one, such as mpiexec"
        self.add("--hostfile", path, "FILE", text)
        self.add_exclude()
        self.add_site()

    def add_exclude(self) -> None:
        text = "nodes to leave alone, such as n3,n[7-9]"
        self.add("--exclude", str, "NODES", text, default="")

    def add_site(self) -> None:
        text = "site profile: generic (default), alps, frontier, perlmutter, or a file"
        self.add("--site", str, "NAME", text, default=GENERIC)

    def add_study(self) -> None:
        self.add("--study", str, "NAME", "Optuna study, if the storage has several", default="")

    def add_policy(self) -> None:
        self.add("--policy", str, "NAME", _POLICY, default="meshtune")


def archive_folder() -> Path:
    """The folder of kept runs that ``MESHTUNE_ARCHIVE`` names, or the user's own."""
    try:
        return Path(os.environ.get("MESHTUNE_ARCHIVE") or "~/.meshtune/archive").expanduser()
    except RuntimeError as error:  # no home
        raise UsageError(f"{error}: let MESHTUNE_ARCHIVE name a folder") from None


def command(commands: Commands, name: str, handler: Handler, text: str) -> Parser:
    """A command's parser; ``handler`` returns the process's exit code, None for 0."""
    parser: Parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(handler=handler)
    return parser


def launcher_options(arguments: Namespace, num_nodes: int) -> slurm.LauncherOptions:
    """The options that ``add_launcher`` has added, for trials of so many nodes."""
    return slurm.LauncherOptions(num_nodes, arguments.site, arguments.hostfile, arguments.exclude)


def launched(arguments: Namespace, num_nodes: int) -> closing[slurm.Launcher]:
    """The launcher that these options name; a context, at whose end it is closed."""
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
    """A share: from 0 to less than 1."""
    value = _number(text)
    if not 0 <= value < 1:
        raise ArgumentTypeError(f"'{shown(text, 60)}' is not a share: from 0 to less than 1")
    return value


def source(text: str) -> str:
    """A path of a file or folder, which need not exist, or the URL of a database."""
    return text if "://" in text else str(path(text))


def positive(text: str) -> int:
    """A count: from 1 to ``MOST``."""
    if not text.isdecimal() or len(text) > DIGITS or not 1 <= int(text) <= MOST:
        raise ArgumentTypeError(f"'{shown(text, 60)}' is not a positive whole number up to {MOST}")
    return int(text)


def counts(text: str) -> list[int]:
    """Counts with commas between them."""
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
