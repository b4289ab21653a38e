"""``meshtune to-optuna``, ``to-mlflow``, ``to-wandb``: a run's trials where others keep theirs."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from workflows.cli.arguments import Commands, command, folder
from workflows.cli.working import Working

if TYPE_CHECKING:
    from analysis import Run


def add_commands(commands: Commands) -> None:
    """Add this group's commands."""
    text = "Copy a run's trials into an Optuna study, for its dashboard."
    parser = command(commands, "to-optuna", to_optuna, text)
    parser.add_argument("run", type=folder, metavar="RUN")
    parser.add_argument("storage", metavar="STORAGE", help="of Optuna's: sqlite:///runs.db")
    parser.add_argument("--name", default="", help="of the study; default: the run's folder's")

    text = "Copy a run's trials into an experiment of MLflow's."
    parser = command(commands, "to-mlflow", to_mlflow, text)
    parser.add_argument("run", type=folder, metavar="RUN")
    parser.add_argument(
        "uri", metavar="URI", help="of MLflow's store: http://host:5000, sqlite:///mlflow.db, DIR"
    )
    parser.add_argument("--name", default="", help="of the experiment; default: the run's folder's")

    text = "Copy a run's trials into a project of Weights & Biases."
    parser = command(commands, "to-wandb", to_wandb, text)
    parser.add_argument("run", type=folder, metavar="RUN")
    parser.add_argument("--project", default="meshtune", metavar="P", help="default: meshtune")
    parser.add_argument("--name", default="", help="of the group; default: the run's folder's")


def to_optuna(arguments: Namespace) -> int:
    """Copy a run into a storage of Optuna's; what is there already stays."""
    from foundation.messages import shown
    from workflows.to_optuna import to_optuna as copy

    _added(arguments, copy, arguments.storage, "study")
    print(f"optuna-dashboard {shown(arguments.storage)} shows it")
    return 0


def to_mlflow(arguments: Namespace) -> int:
    """Copy a run into a store of MLflow's; what is there already stays."""
    from workflows.to_mlflow import to_mlflow as copy

    _added(arguments, copy, arguments.uri, "experiment")
    return 0


def _added(
    arguments: Namespace, copy: Callable[[Run, str, str], tuple[int, int]], store: str, what: str
) -> None:
    """Copy a run's new trials, and say how many."""
    from analysis import read_run
    from foundation.messages import shown
    from foundation.quantities import counted
    from workflows.cli.errors import UsageError

    run, name = read_run(arguments.run), _name(arguments)
    try:
        with Working("copying the trials"):
            added, known = copy(run, store, name)
    except ValueError as error:
        raise UsageError(f"{shown(store)}: {error}") from None
    said = f"{counted(added, 'trial')} added to the {what} {name}"
    print(said + (f", {known} were there already" if known else ""))


def to_wandb(arguments: Namespace) -> int:
    """Copy a run into a project of W&B's."""
    from analysis import read_run
    from foundation.quantities import counted
    from workflows.cli.errors import UsageError
    from workflows.to_wandb import to_wandb as copied

    run, name = read_run(arguments.run), _name(arguments)
    try:
        with Working("copying the trials"):
            written = copied(run, arguments.project, name, Path())
    except ValueError as error:
        raise UsageError(f"--project {arguments.project}: {error}") from None
    print(f"{counted(written, 'trial')} written to the project {arguments.project}, group {name}")
    return 0


def _name(arguments: Namespace) -> str:
    """The one that was given, or that of the run's folder."""
    return str(arguments.name or arguments.run.absolute().name)
