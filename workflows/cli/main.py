"""``meshtune``: the command line. Thin: every command is a call into the library.

Facades import names on first use, and commands import what else they need, so that ``--help``
answers at once (torch, DeepHyper and shap take seconds). Exit codes: 0 done, 1 the run
failed, 2 the input is wrong, 3 stopped with work left (the same command resumes it), 130
interrupted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import MutableMapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from foundation.documents import read_document
from foundation.files import explained
from foundation.messages import message
from workflows.cli.arguments import Parser
from workflows.cli.listing import complete

COMMANDS = Path(__file__).with_name("commands.yaml")


def find_python(environ: MutableMapping[str, str]) -> None:
    """Put the running interpreter on the path if it has no ``python``, such as Debian's."""
    path = environ.get("PATH", os.defpath)
    if shutil.which("python", path=path) is None:
        environ["PATH"] = os.pathsep.join((path, os.path.dirname(sys.executable)))  # noqa: PTH120


def main(argv: Sequence[str] | None = None) -> int:
    """Parse ``argv`` (default: the process's) and run the command; returns the exit code."""
    _open_standard_streams()
    find_python(os.environ)
    code: int = 0
    try:
        whole = parser()
        complete(whole)
        if not (sys.argv[1:] if argv is None else argv):
            whole.print_help()
            return 2
        arguments = whole.parse_args(argv)  # checks the given paths
        module, function = arguments.handler.split(".")
        code = getattr(import_module(f"workflows.cli.{module}"), function)(arguments) or 0
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has enough; the interpreter's own last flush must not complain either.
        _drop_output()
        return code
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        known, said = _code_and_message(error)
        if known is None:
            raise
        print(f"meshtune: {message(said)}", file=sys.stderr)
        _drop_output()
        return known
    return code


def _code_and_message(error: Exception) -> tuple[int | None, object]:
    """The exit code and the message of an error; no code for an error of meshtune's own."""
    try:
        from workflows.cli.errors import exit_code
    except (ImportError, OSError) as missing:  # file server away, or no free descriptor
        return 1, explained(missing)
    if isinstance(error, ImportError):
        return 1, explained(error)
    return exit_code(error), explained(error) if isinstance(error, OSError) else error


def _open_standard_streams() -> None:
    """Open closed streams (``>&-``) to /dev/null, or the next file would take their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 - for good


def _drop_output() -> None:
    """Discard buffered output that cannot be written."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Version(argparse.Action):
    """Prints the version; looking it up takes longer than all of ``--help``."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"meshtune {version('meshtune')}")
        parser.exit()


def parser() -> Parser:
    """The parser of all commands; ``handler`` of its result names the function that runs one."""
    whole = Parser(
        prog="meshtune",
        description="Find the parallel training configuration that trains fastest, and show why.",
    )
    whole.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    for name, told in read_document(COMMANDS).root.plain()["commands"].items():
        parser: Parser = commands.add_parser(name, help=told["about"], description=told["about"])
        parser.commands = whole.commands = commands.choices
        parser.add(told["arguments"])
        parser.set_defaults(handler=told["runs"], **told.get("sets", {}))
    return whole


if __name__ == "__main__":
    sys.exit(main())
