"""The one seam through which Slurm's own commands run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from slurm.launcher import LauncherError

TIMEOUT_S = 60.0  # a controller that fails over answers within a minute

# An environment inherited from the job or a shell changes what these commands do. What stays
# says which Slurm and which job; SLURM_NETWORK is how the job's --network reaches its steps.
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


class SlurmError(LauncherError):
    """A Slurm command failed; the message has its words."""


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would leak from the job into its steps.

    The job's own ``--ntasks-per-node``, ``--cpus-per-task`` and CPU binding arrive as such
    variables, and a nested srun obeys them.
    """
    return {k: v for k, v in environ.items() if k in _KEPT or not k.startswith(_PREFIXES)}


def run(argv: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> str:
    """Run a Slurm command and return its standard output, stripped.

    Raises:
        SlurmError: if it is missing, fails, or does not answer in time.
    """
    if shutil.which(argv[0]) is None:
        raise SlurmError(f"{argv[0]} is not on PATH; this needs Slurm's client commands")
    defaults = {k: v for k, v in os.environ.items() if k.startswith("SBATCH_")}  # the user's own
    try:
        done = subprocess.run(
            argv,
            env=scrubbed(os.environ) | defaults,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{argv[0]} did not answer within {timeout_s:g} s") from error
    except OSError as error:  # no process or memory for it
        raise SlurmError(f"{argv[0]} cannot be started: {error}") from error
    except subprocess.CalledProcessError as error:
        said = " ".join((error.stderr or error.stdout).split()) or f"exit code {error.returncode}"
        raise SlurmError(f"{argv[0]}: {said}") from error
    return done.stdout.strip()
