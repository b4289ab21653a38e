"""``meshtune to-optuna``, ``to-mlflow``, ``to-wandb``: a run's trials in an experiment tracker."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import analysis
from foundation.messages import shown
from foundation.quantities import counted
from workflows.cli.arguments import Commands, Handler, UsageError, add, command, folder
from workflows.cli.working import Working

C = TypeVar("C")


def add_commands(commands: Commands) -> None:
    def of_run(name: str, handler: Handler, text: str) -> ArgumentParser:
        parser = command(commands, name, handler, text)
        add(parser, "run", folder, "RUN")
        return parser

    text = "Copy a run's trials into an Optuna study, for its dashboard."
    parser = of_run("to-optuna", to_optuna, text)
    add(parser, "storage", str, "STORAGE", "Optuna storage: sqlite:///runs.db")
    add(parser, "--name", str, "NAME", "of the study; default: the run folder's", default="")

    parser = of_run("to-mlflow", to_mlflow, "Copy a run's trials into an MLflow experiment.")
    add(parser, "uri", str, "URI", "MLflow store: http://host:5000, sqlite:///mlflow.db, DIR")
    add(parser, "--name", str, "NAME", "of the experiment; default: the run folder's", default="")

    parser = of_run("to-wandb", to_wandb, "Copy a run's trials into a Weights & Biases project.")
    add(parser, "--project", str, "P", "default: meshtune", default="meshtune")
    add(parser, "--name", str, "NAME", "of the group; default: the run folder's", default="")


def to_optuna(arguments: Namespace) -> int:
    """Copy a run into an Optuna storage; trials that are there already stay."""
    from workflows.to_optuna import to_optuna as copy

    where, name = arguments.storage, _name(arguments)
    counts = _copied(arguments, shown(where), lambda run: copy(run, where, name))
    _print_counts(counts, f"study {name}")
    print(f"`optuna-dashboard {shown(where)}` shows it")
    return 0


def to_mlflow(arguments: Namespace) -> int:
    """Copy a run into an MLflow store; trials that are there already stay."""
    from workflows.to_mlflow import to_mlflow as copy

    where, name = arguments.uri, _name(arguments)
    counts = _copied(arguments, shown(where), lambda run: copy(run, where, name))
    _print_counts(counts, f"experiment {name}")
    return 0


def to_wandb(arguments: Namespace) -> int:
    """Copy a run into a W&B project."""
    from workflows.to_wandb import to_wandb as copy

    project, name = arguments.project, _name(arguments)
    where = f"--project {project}"
    written = _copied(arguments, where, lambda run: copy(run, project, name, Path()))
    print(f"{counted(written, 'trial')} written to the project {project}, group {name}")
    return 0


def _copied(arguments: Namespace, where: str, copy: Callable[[analysis.Run], C]) -> C:
    """Copy the run; a refusal becomes an error that names the place."""
    run = analysis.read_run(arguments.run)
    try:
        with Working("copying the trials"):
            return copy(run)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None


def _print_counts(counts: tuple[int, int], where: str) -> None:
    added, known = counts
    already = f", {known} were there already" if known else ""
    print(f"{counted(added, 'trial')} added to the {where}{already}")


def _name(arguments: Namespace) -> str:
    """The name that was given, else that of the run's folder."""
    return str(arguments.name or arguments.run.absolute().name)
