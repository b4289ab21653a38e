"""Trials of the srun launcher, and what is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm import processes
from slurm.outcome.classify import Outcome
from slurm.srun.command import srun_environment
from slurm.srun.launcher import SrunLauncher
from slurm.trial import Lease, TrialSpec

NEVER = threading.Event()
HANG = "import os, time; open('pid' + os.environ['RANK'], 'w').write(str(os.getpid())); "
SLEEP = "time.sleep(600)"


def trial(folder: Path, name: str, code: str, **changes: Any) -> TrialSpec:
    directory = folder / name
    directory.mkdir()
    fields: dict[str, Any] = {"num_nodes": 1, "ranks_per_node": 2, "timeout_s": 60, "grace_s": 1}
    name = f"{folder.parent.name}-{folder.name}-{name}"  # unique in this Slurm
    return TrialSpec(name, directory, (sys.executable, "-c", code), **{**fields, **changes})


def run_on(launcher: SrunLauncher, spec: TrialSpec, first: int = 0) -> Outcome:
    nodes = tuple(launcher.nodes()[first : first + spec.num_nodes])
    return launcher.run(spec, Lease("1", nodes), NEVER)


def pids(spec: TrialSpec) -> list[int]:
    """Of the ranks that a HANG trial has started."""
    texts = [path.read_text() for path in spec.directory.glob("pid*")]
    return [int(text) for text in texts if text]


def sruns_of(spec: TrialSpec) -> set[int]:
    """Ids of the trial's srun and its shepherd."""
    found = processes.with_environ(lambda env: env.get("MESHTUNE_TRIAL") == spec.name)
    return {pid for pid in found if processes.name(pid) == "srun"}


def in_thread(run: Callable[[], Outcome]) -> tuple[threading.Thread, list[Outcome]]:
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(run()))
    thread.start()
    return thread, outcomes


def step_names(launcher: SrunLauncher) -> set[str]:
    return {step.name for step in launcher.allocation.steps()}


def assert_gone(launcher: SrunLauncher, spec: TrialSpec) -> None:
    assert pids(spec)
    assert not [pid for pid in pids(spec) if processes.is_running(pid)]
    assert spec.name not in step_names(launcher)


def start_srun(launcher: SrunLauncher, spec: TrialSpec, node: str) -> subprocess.Popen[bytes]:
    """The trial's srun, whose driver is whoever calls this; it leads its process group."""
    lease = Lease("1", (node,))
    environ = srun_environment(
        spec, lease, launcher.site, "127.0.0.1", os.environ, launcher.allocation.cpus_per_node
    )
    return subprocess.Popen(
        launcher.command(spec, lease), cwd=spec.directory, start_new_session=True,
        env=environ | {"SLURM_JOB_ID": launcher.allocation.job},
    )  # fmt: skip
