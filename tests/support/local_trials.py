"""Trials of the local launcher, and the processes that they leave or should not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

from slurm import processes
from slurm.local.launcher import LocalLauncher
from slurm.outcome.classify import Outcome
from slurm.trial import Lease, TrialSpec

OK = "import json; json.dump({'status': 'ok', 'x': 1}, open('result.json', 'w'))"
DRIVER = """
import sys, threading
from pathlib import Path
from slurm.trial import Lease, TrialSpec
from slurm.local.launcher import LocalLauncher

local = LocalLauncher(preload=sys.argv[3])
name, directory = sys.argv[1], Path(sys.argv[2])
spec = TrialSpec(name, directory, tuple(sys.argv[4:]), 1, 2, 600.0)
local.run(spec, Lease(name, ("local0",)), threading.Event())
"""


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", textwrap.dedent(code))


def run(launcher: LocalLauncher, spec: TrialSpec) -> Outcome:
    lease = Lease(spec.name, tuple(launcher.nodes()[: spec.num_nodes]))
    return launcher.run(spec, lease, threading.Event())


def log(spec: TrialSpec, name: str = "stdout.log") -> str:
    path = spec.directory / name
    try:
        return path.read_text()
    except FileNotFoundError:  # or taken away at this moment: a launcher begins with a new one
        return ""


def fork_servers() -> set[int]:
    """Fork servers and shepherds of this process's launchers."""
    found = set()
    for pid in processes.descendants(os.getpid()):
        with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
            if b"slurm.local.server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found


def start_driver(spec: TrialSpec, preload: str = "trainer") -> subprocess.Popen[bytes]:
    """Another process that runs the trial, on one node."""
    argv = [sys.executable, "-c", DRIVER, spec.name, str(spec.directory), preload]
    return subprocess.Popen([*argv, *spec.argv], cwd=Path(__file__).parents[2])
