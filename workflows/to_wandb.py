"""``meshtune to-wandb``: a run's trials as Weights & Biases runs, in one group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analysis import Run
from foundation.messages import first_line
from workflows.logged import Logged, TrackerError, identity, logged, tracker


def to_wandb(run: Run, project: str, name: str, folder: Path) -> int:
    """Add a run's trials to a project's group ``name``; return how many were written.

    A W&B run's id follows from its trial, so that a second call writes the same runs. All metrics
    go into the summary and none into the history, to which each call would append. With
    ``WANDB_MODE=offline`` everything is kept in ``folder/wandb``, for ``wandb sync``.

    Raises:
        ValueError: if W&B is not installed.
        TrackerError: if W&B refuses them, or the disk is full.
    """
    wandb = tracker("wandb")
    trials = run.ended
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True)
    try:
        for trial in trials:
            _add(wandb, settings, logged(run, trial), trial.ok, project, name, folder, run)
    except (wandb.errors.Error, OSError) as error:
        raise TrackerError(
            f"{first_line(error)}; `wandb login` gives access, WANDB_MODE=offline keeps all on disk"
        ) from None
    finally:
        wandb.teardown()  # its service writes in the background: until then not all is on disk
    return len(trials)


def _add(
    wandb: Any, settings: Any, what: Logged, ok: bool, project: str, name: str, folder: Path,
    run: Run,
) -> None:  # fmt: skip
    config = {**what.parameters, "meshtune": {k: v for k, v in what.tags.items() if v}}
    made = wandb.init(
        project=project,
        group=name,
        name=what.name,
        id=f"{identity(run)}-{what.tags['trial']}",
        resume="allow",
        reinit="finish_previous",
        config=config,
        tags=[what.tags["kind"]],
        dir=folder,
        settings=settings,
    )
    made.summary.update({**what.metrics, "duration_s": what.ended_t - what.started_t})
    made.finish(exit_code=0 if ok else 1)
