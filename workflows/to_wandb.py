"""``meshtune to-wandb``: a run's trials as Weights & Biases runs, in one group."""

from __future__ import annotations

from pathlib import Path

from analysis import Run
from foundation.messages import first_line
from workflows.logged import TrackerError, identity, logged, tracker


def to_wandb(run: Run, project: str, name: str, folder: Path) -> int:
    """Add a run's trials to a project's group ``name``; return how many were written.

    A W&B run's id follows from its trial, so that a second call writes the same runs; its metrics
    are all in the summary, as each call would append to a history. With ``WANDB_MODE=offline``
    everything is in ``folder/wandb``.

    Raises ValueError if W&B is not installed, TrackerError if it refuses, or the disk is full.
    """
    wandb = tracker("wandb")
    trials = run.ended
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True)
    try:
        for trial in trials:
            what = logged(run, trial)
            made = wandb.init(
                project=project,
                group=name,
                name=what.name,
                id=f"{identity(run)}-{trial.number}",
                resume="allow",
                reinit="finish_previous",
                config={**what.parameters, "meshtune": {k: v for k, v in what.tags.items() if v}},
                tags=[what.tags["kind"]],
                dir=folder,
                settings=settings,
            )
            made.summary.update({**what.metrics, "duration_s": what.ended_t - what.started_t})
            made.finish(exit_code=0 if trial.ok else 1)
    except (wandb.errors.Error, OSError) as error:
        raise TrackerError(
            f"{first_line(error)}; `wandb login` gives access, WANDB_MODE=offline keeps all on disk"
        ) from None
    finally:
        wandb.teardown()  # its service writes in the background: until then not all is on disk
    return len(trials)
