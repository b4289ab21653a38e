"""Command lines that run meshtune's modules in interpreters of their own."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_RUN_MODULE = "meshtune.run_module"  # not imported: it is in a higher layer


def module_argv(module: str, *arguments: str) -> tuple[str, ...]:
    """``python -m MODULE ARGUMENTS``, with meshtune's packages before others of their names."""
    return (sys.executable, "-m", _RUN_MODULE, module, *arguments)


def module_arguments(argv: Sequence[str], module: str) -> list[str] | None:
    """The arguments, if ``argv`` is :func:`module_argv` of that module; else None."""
    head = module_argv(module)
    return list(argv[len(head) :]) if tuple(argv[: len(head)]) == head else None


def isolated_argv(file: str, *arguments: str, python: str = "") -> tuple[str, ...]:
    """``python FILE ARGUMENTS``, with the standard library alone: it starts in 20 ms."""
    return (python or sys.executable, "-I", "-S", file, *arguments)
