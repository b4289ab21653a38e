"""Trials that a launcher runs, and the processes that they leave or should not."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm import processes
from slurm.launcher import Launcher
from slurm.outcome.classify import Outcome
from slurm.trial import TRIAL_VARIABLE, Lease, TrialSpec

NEVER = threading.Event()
HANG = "import os, time; open('pid' + os.environ['RANK'], 'w').write(str(os.getpid())); "
SLEEP = "time.sleep(600)"


def trial(folder: Path, name: str, code: str, **changes: Any) -> TrialSpec:
    """One that runs this Python code in each of two ranks."""
    directory = folder / name
    directory.mkdir()
    fields: dict[str, Any] = {"num_nodes": 1, "ranks_per_node": 2, "timeout_s": 600, "grace_s": 1}
    name = f"{folder.parent.name}-{folder.name}-{name}"  # unique in this Slurm
    return TrialSpec(name, directory, (sys.executable, "-c", code), **{**fields, **changes})


def run_on(launcher: Launcher, spec: TrialSpec, first: int = 0) -> Outcome:
    """Run it on the launcher's nodes from the ``first`` on."""
    nodes = tuple(launcher.nodes()[first : first + spec.num_nodes])
    return launcher.run(spec, Lease("1", nodes), NEVER)


def in_thread(run: Callable[[], Outcome]) -> tuple[threading.Thread, list[Outcome]]:
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(run()))
    thread.start()
    return thread, outcomes


def pids(spec: TrialSpec) -> list[int]:
    """Of the ranks that a HANG trial has started."""
    texts = [path.read_text() for path in spec.directory.glob("pid*")]
    return [int(text) for text in texts if text]


def marked(spec: TrialSpec) -> set[int]:
    """Processes that carry the trial's name in their environment."""
    return processes.with_environ(lambda env: env.get(TRIAL_VARIABLE) == spec.name)


def assert_ranks_ended(spec: TrialSpec) -> None:
    """Those of a HANG trial."""
    assert pids(spec)
    assert not [pid for pid in pids(spec) if processes.is_running(pid)]
