"""What only the trials of the srun launcher have: steps, and an srun each."""

from __future__ import annotations

import os
import subprocess

from slurm import processes
from slurm.srun.command import srun_environment
from slurm.srun.launcher import SrunLauncher
from slurm.trial import Lease, TrialSpec
from support.launched_trials import assert_ranks_ended, marked


def sruns_of(spec: TrialSpec) -> set[int]:
    """Ids of the trial's srun and its shepherd."""
    return {pid for pid in marked(spec) if processes.name(pid) == "srun"}


def step_names(launcher: SrunLauncher) -> set[str]:
    return {step.name for step in launcher.allocation.steps()}


def assert_gone(launcher: SrunLauncher, spec: TrialSpec) -> None:
    assert_ranks_ended(spec)
    assert spec.name not in step_names(launcher)


def start_srun(launcher: SrunLauncher, spec: TrialSpec, node: str) -> subprocess.Popen[bytes]:
    """The trial's srun, whose driver is whoever calls this; it leads its process group."""
    lease = Lease("1", (node,))
    environ = srun_environment(
        spec, launcher.site, "127.0.0.1", os.environ, launcher.allocation.cpus_per_node
    )
    return subprocess.Popen(
        launcher.command(spec, lease), cwd=spec.directory, start_new_session=True,
        env=environ | {"SLURM_JOB_ID": launcher.allocation.job},
    )  # fmt: skip
