"""Running Slurm's own commands: the only place that does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from slurm.launcher import LauncherError

TIMEOUT_S = 60.0  # of one command; a controller that fails over answers within a minute
PATIENCE_S = 600.0  # of a command that is repeated: a controller may have to be restarted
_FIRST_PAUSE_S, _LAST_PAUSE_S = 1.0, 30.0

# Variables inherited from the job or a shell change what these commands do. The kept ones select
# the Slurm and the job; by SLURM_NETWORK the job's --network reaches its steps.
_PREFIXES = ("SLURM_", "SRUN_", "SBATCH_", "SALLOC_", "SQUEUE_", "SINFO_", "SCANCEL_", "PMI_")
_KEPT = {
    "SLURM_CONF",
    "SLURM_CLUSTER_NAME",
    "SLURM_JOBID",
    "SLURM_JOB_ID",
    "SLURM_JWT",
    "SLURM_NETWORK",
    "SLURM_WORKING_CLUSTER",
}


# Messages of Slurm 22.05 to 25 for a controller that is away, busy, or being replaced by its
# backup, or while munge is away; and for an unknown job or step.
_NO_ANSWER = re.compile(
    r"[Uu]nable to contact slurm|Socket timed out|Zero Bytes were transmitted|in standby mode"
    r"|Communication (?:connection|shutdown) failure|Message (?:send|receive) failure"
    r"|Unexpected message received|Connection (?:refused|reset|timed out)|authentication error"
)
_UNKNOWN_JOB = re.compile(r"Invalid job id specified")

Run = Callable[[Sequence[str]], str]


class SlurmError(LauncherError):
    """A Slurm command failed; the message quotes it."""


class NoAnswerError(SlurmError):
    """The controller did not answer; it may have carried out the command."""


class UnknownJobError(SlurmError):
    """Slurm knows no such job (any more)."""


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that would leak from the job into its steps.

    The job's own ``--ntasks-per-node``, ``--cpus-per-task`` and CPU binding arrive as such
    variables, and a nested srun obeys them.
    """
    return {k: v for k, v in environ.items() if k in _KEPT or not k.startswith(_PREFIXES)}


def run(argv: Sequence[str], without: tuple[str, ...] = ()) -> str:
    """Run a Slurm command once and return its standard output, stripped.

    The user's variables ``SBATCH_*`` are sbatch's defaults, except those that begin with a text of
    ``without``.

    Raises:
        NoAnswerError: if the controller does not answer in time.
        UnknownJobError: if the controller knows no such job.
        SlurmError: if the command is missing, or fails otherwise.
    """
    if shutil.which(argv[0]) is None:
        raise SlurmError(f"{argv[0]} is not on PATH; this needs Slurm's client commands")
    own = {k: v for k, v in os.environ.items() if k.startswith("SBATCH_")}
    defaults = {k: v for k, v in own.items() if not k.startswith(without)}
    try:
        done = subprocess.run(
            argv,
            env=scrubbed(os.environ) | defaults,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",  # a reason written by an administrator may be in any encoding
            timeout=TIMEOUT_S,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise NoAnswerError(f"{argv[0]} did not answer within {TIMEOUT_S:g} s") from error
    except OSError as error:  # too many processes, or no memory
        raise SlurmError(f"{argv[0]} cannot be started: {error}") from error
    except subprocess.CalledProcessError as error:
        said = " ".join((error.stderr or error.stdout).split()) or f"exit code {error.returncode}"
        kind = next((k for k, words in _ERRORS.items() if words.search(said)), SlurmError)
        raise kind(f"{argv[0]}: {said}") from error
    return done.stdout.strip()


_ERRORS = {NoAnswerError: _NO_ANSWER, UnknownJobError: _UNKNOWN_JOB}


def _say(text: str) -> None:
    print(f"meshtune: {text}", file=sys.stderr, flush=True)


def patiently(
    argv: Sequence[str],
    once: Run = run,
    patience_s: float = PATIENCE_S,
    sleep: Callable[[float], object] = time.sleep,
    tell: Callable[[str], object] = _say,
) -> str:
    """Run a Slurm command until the controller answers, with pauses that double.

    For queries, and for commands that may be repeated. ``patience_s`` covers all pauses and tries
    before the last try; ``tell`` is called once, with a line that announces the repetition.

    Raises NoAnswerError if it has not answered by then, SlurmError if the command fails.
    """
    left_s, pause_s = patience_s, _FIRST_PAUSE_S
    while True:
        began = time.monotonic()
        try:
            return once(argv)
        except NoAnswerError as error:
            left_s -= time.monotonic() - began
            if left_s <= 0:
                raise
            if pause_s == _FIRST_PAUSE_S:
                tell(f"Slurm does not answer ({error}): asking again for {left_s:.0f} s")
            pause_s = min(pause_s, left_s)
            sleep(pause_s)
            left_s -= pause_s
            pause_s = min(_LAST_PAUSE_S, 2 * pause_s)
