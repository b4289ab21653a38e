"""``meshtune to-optuna``, ``to-mlflow``, ``to-wandb``: a run's trials in an experiment tracker."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import analysis
from foundation.messages import shown
from foundation.quantities import counted
from workflows.cli.arguments import UsageError
from workflows.cli.working import Working


def to_optuna(arguments: Namespace) -> None:
    from workflows.to_optuna import to_optuna as copy

    run, name, where = *_source(arguments), shown(arguments.storage)
    with _copying(where):
        counts = copy(run, arguments.storage, name)
    _print_added(*counts, f"study {name}")
    print(f"`optuna-dashboard {where}` shows it")


def to_mlflow(arguments: Namespace) -> None:
    from workflows.trackers import to_mlflow as copy

    run, name = _source(arguments)
    with _copying(shown(arguments.uri)):
        counts = copy(run, arguments.uri, name)
    _print_added(*counts, f"experiment {name}")


def to_wandb(arguments: Namespace) -> None:
    from workflows.trackers import to_wandb as copy

    run, name = _source(arguments)
    with _copying(f"--project {arguments.project}"):
        count = copy(run, arguments.project, name, Path())
    print(f"{counted(count, 'trial')} written to the project {arguments.project}, group {name}")


def _source(arguments: Namespace) -> tuple[analysis.Run, str]:
    """The run, and its name in the tracker."""
    return analysis.read_run(arguments.run), arguments.name or arguments.run.absolute().name


@contextmanager
def _copying(where: str) -> Iterator[None]:
    """Copying trials; a refusal becomes an error that names the place."""
    try:
        with Working("copying the trials"):
            yield
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None


def _print_added(added: int, known: int, where: str) -> None:
    already = f", {known} were there already" if known else ""
    print(f"{counted(added, 'trial')} added to the {where}{already}")
