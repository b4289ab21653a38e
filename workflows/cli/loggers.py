"""``meshtune to-optuna``, ``to-mlflow``, ``to-wandb``: a run's trials in an experiment tracker."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import analysis
from foundation.messages import shown
from foundation.quantities import counted
from workflows.cli.arguments import UsageError
from workflows.cli.working import Working

# Returns the number of trials written, or the numbers of those added and those already there.
Copy = Callable[["analysis.Run", str], int | tuple[int, int]]


def to_optuna(arguments: Namespace) -> None:
    from workflows.to_optuna import to_optuna as copy

    where = shown(arguments.storage)
    _copy(arguments, where, "study", lambda run, name: copy(run, arguments.storage, name))
    print(f"`optuna-dashboard {where}` shows it")


def to_mlflow(arguments: Namespace) -> None:
    from workflows.trackers import to_mlflow as copy

    where = arguments.uri
    _copy(arguments, shown(where), "experiment", lambda run, name: copy(run, where, name))


def to_wandb(arguments: Namespace) -> None:
    from workflows.trackers import to_wandb as copy

    project = arguments.project
    where, group = f"--project {project}", f"project {project}, group"
    _copy(arguments, where, group, lambda run, name: copy(run, project, name, Path()))


def _copy(arguments: Namespace, where: str, kind: str, copy: Copy) -> None:
    """Copy the run, and print the count; a refusal becomes an error that names the place."""
    run = analysis.read_run(arguments.run)
    name = arguments.name or arguments.run.absolute().name
    try:
        with Working("copying the trials"):
            copied = copy(run, name)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    if isinstance(copied, int):
        print(f"{counted(copied, 'trial')} written to the {kind} {name}")
        return
    added, known = copied
    already = f", {known} were there already" if known else ""
    print(f"{counted(added, 'trial')} added to the {kind} {name}{already}")
