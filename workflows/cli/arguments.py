"""Options that several commands share, and the types of their values."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foundation.messages import shown

Commands = Any  # argparse's subparsers, whose class has no public name
Handler = Callable[[Namespace], int]
GENERIC = "generic"  # the site's profile where none is named
MOST = 10**9  # of anything that is counted
DIGITS = 18  # of a seed
LONGEST_NAME, LONGEST_PATH = 255, 4000  # of a file, in bytes


def command(commands: Commands, name: str, handler: Handler, text: str) -> ArgumentParser:
    """A command's parser; ``handler`` returns the process's exit code."""
    parser: ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(handler=handler)
    return parser


def add_space(parser: ArgumentParser) -> None:
    parser.add_argument(
        "space", metavar="SPACE", help="a space file, or the name of a shipped one (tiny_cpu)"
    )


def add_run_dir(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--run-dir", type=folder, metavar="DIR", help="default: runs/NAME, NAME being the space's"
    )


def add_launcher(parser: ArgumentParser, known: str = "local, srun, mpiexec") -> None:
    # Not ``choices``: installed distributions add launchers, and --help need not look for them.
    parser.add_argument(
        "--launcher",
        metavar="NAME",
        help=f"{known}, or an installed one; default: srun inside a Slurm allocation, else local",
    )
    parser.add_argument(
        "--hostfile",
        type=path,
        metavar="FILE",
        help="list of hosts, for a launcher that needs one, such as mpiexec",
    )
    add_site(parser)


def add_site(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--site",
        default=GENERIC,
        metavar="NAME",
        help="site profile: generic (default), frontier, perlmutter, or a file",
    )


def check_site(arguments: Namespace) -> None:
    """Raise SiteError for a bad ``--site`` now, also where its launcher would not read it."""
    from slurm import load_site  # pydantic

    if arguments.site != GENERIC:
        load_site(arguments.site)


def add_study(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--study", default="", metavar="NAME", help="of Optuna's, where its storage has several"
    )


def add_policy(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--policy",
        default="meshtune",
        metavar="NAME",
        help="what chooses the configurations: meshtune (default: the cost model, corrected by "
        "the measurements and backed by Bayesian optimization), deephyper, optuna, cost-model "
        "(its ranking alone), sobol, random, or an installed one",
    )


def path(text: str) -> Path:
    """Of a file or folder, there or not."""
    longest_name = max((len(part.encode()) for part in text.split("/")), default=0)
    if not text or "\0" in text or longest_name > LONGEST_NAME or len(text) > LONGEST_PATH:
        raise ArgumentTypeError(f"'{shown(text, 60)}' is not a path")
    return Path(text)


def folder(text: str) -> Path:
    """Of a folder, there or not."""
    where = path(text)
    if where.exists() and not where.is_dir():
        raise ArgumentTypeError(f"'{shown(text, 60)}' is not a folder")
    return where


def share(text: str) -> float:
    """From 0 to less than 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise ArgumentTypeError(f"'{shown(text, 60)}' is not a share: from 0 to less than 1")
    return value


def source(text: str) -> str:
    """Of a folder or a file, there or not, or the URL of a database."""
    return text if "://" in text else str(path(text))


def positive(text: str) -> int:
    if not text.isdecimal() or len(text) > DIGITS or not 1 <= int(text) <= MOST:
        raise ArgumentTypeError(f"'{shown(text, 60)}' is not a positive whole number up to {MOST}")
    return int(text)


def counts(text: str) -> list[int]:
    return [positive(item) for item in text.split(",")]


def tokens(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value < float("inf"):
        raise ArgumentTypeError(f"'{shown(text, 60)}' is not a number of tokens")
    return value


def seed(text: str) -> int:
    if not text.isdecimal() or len(text) > DIGITS:
        words = f"0 or more, with at most {DIGITS} digits"
        raise ArgumentTypeError(f"'{shown(text, 60)}' is not a whole number of {words}")
    return int(text)
