"""``meshtune to-optuna``, ``to-mlflow``, ``to-wandb``: a run's trials where others keep theirs."""

from __future__ import annotations

from argparse import Namespace

from workflows.cli.arguments import Commands, command, folder
from workflows.cli.working import Working


def add_commands(commands: Commands) -> None:
    """Add this group's commands."""
    text = "Copy a run's trials into a study of Optuna's, for its dashboard."
    parser = command(commands, "to-optuna", to_optuna, text)
    parser.add_argument("run", type=folder, metavar="RUN")
    parser.add_argument("storage", metavar="STORAGE", help="of Optuna's: sqlite:///runs.db")
    parser.add_argument("--name", default="", help="of the study; default: the run's folder's")


def to_optuna(arguments: Namespace) -> int:
    """Copy a run into a storage of Optuna's; what is there already stays."""
    from analysis import counted, read_run
    from workflows.cli.errors import UsageError
    from workflows.to_optuna import to_optuna as copied

    run = read_run(arguments.run)
    name = arguments.name or arguments.run.absolute().name
    try:
        with Working("copying the trials"):
            added, known = copied(run, arguments.storage, name)
    except ValueError as error:
        raise UsageError(f"{arguments.storage}: {error}") from None
    said = f"{counted(added, 'trial')} added to the study {name}"
    print(said + (f", {known} were there already" if known else ""))
    print(f"optuna-dashboard {arguments.storage} shows it")
    return 0
