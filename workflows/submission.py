"""``meshtune submit`` around sbatch: if sbatch refuses, the run's folder is as before."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from analysis import RunFolder
from foundation.values import seconds
from foundation.writing import write_atomically
from search_spaces import SearchSpace
from slurm import BatchError, BatchJob, LauncherError, NoAnswerError
from workflows.search.allocation import END_MARGIN_S

MARK = "# A meshtune search."
_JOB_START_S = 60.0  # of modules, environment and driver, before a first trial


def time_limit(text: str) -> str:
    """A job's time limit as sbatch takes it, from its own forms or a duration with its unit.

    >>> time_limit("90m"), time_limit("1-12"), time_limit("02:00:00")
    ('1:30:00', '1-12', '02:00:00')
    """
    if not text.endswith(("s", "m", "h", "d")):
        return text
    with suppress(ValueError):
        minutes, second = divmod(math.ceil(seconds(text)), 60)
        return f"{minutes // 60}:{minutes % 60:02d}:{second:02d}"
    return text  # sbatch's own forms


def least_s(space: SearchSpace) -> float:
    """The shortest job in which a trial starts, in seconds."""
    return _JOB_START_S + space.trial.timeout_s + END_MARGIN_S


def written(script: str, file: Path, folder: RunFolder) -> None:
    """Write a batch script for the user to submit, and for its job to submit itself again.

    Raises BatchError if the file exists and is not meshtune's.
    """
    if file.exists() and MARK not in file.read_text(errors="replace"):
        raise BatchError(f"--write {file}: exists, and is no batch script of meshtune's: remove it")
    for place in (BatchJob.script_of(folder.path), file):
        write_atomically(place, script)


@contextmanager
def undone_if_refused(folder: RunFolder) -> Iterator[None]:
    """Restore the run's folder if sbatch refuses the job that is submitted in this context.

    If it is unknown whether the job was accepted, everything stays: the job may need it.
    """
    run = folder.path.absolute()
    made = [path for path in (run, *run.parents) if not path.exists()]
    files = (folder.space_file, BatchJob.script_of(run))
    before = {file: file.read_bytes() if file.is_file() else None for file in files}
    try:
        yield
    except NoAnswerError:
        raise
    except (LauncherError, OSError):
        for file, content in before.items():
            if content is None:
                file.unlink(missing_ok=True)
            else:
                file.write_bytes(content)
        with suppress(OSError):  # a folder is not empty
            (run / "trials").rmdir()
            for path in made:
                path.rmdir()
        raise
