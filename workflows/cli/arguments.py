"""Options that several commands share, and the types of their values."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

Commands = Any  # argparse's subparsers, whose class has no public name
Handler = Callable[[Namespace], int]


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
        "--run-dir", type=Path, metavar="DIR", help="default: runs/NAME, NAME being the space's"
    )


def add_launcher(parser: ArgumentParser, known: str = "local, srun, mpiexec") -> None:
    # Not ``choices``: installed distributions add launchers, and --help need not look for them.
    parser.add_argument(
        "--launcher",
        metavar="NAME",
        help=f"{known}, or an installed one; default: srun inside a Slurm allocation, else local",
    )
    parser.add_argument(
        "--hostfile", type=Path, metavar="FILE", help="hosts, for a launcher that needs a list"
    )
    add_site(parser)


def add_site(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--site",
        default="generic",
        metavar="NAME",
        help="site profile: generic (default), frontier, perlmutter, or a file",
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


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def counts(text: str) -> list[int]:
    return [positive(item) for item in text.split(",")]


def tokens(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a number of tokens")
    return value


def seed(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)
