"""The mpiexec launcher, on a real MPI, keeps to what every launcher does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshtune.testing.process_launchers import ProcessLauncherContract
from slurm.launcher import Launcher
from slurm.mpiexec.launcher import MpiexecLauncher

HOSTS = ("node0", "node1")


class TestMpiexecLauncher(ProcessLauncherContract):
    @pytest.fixture
    def launcher(self, hosts: Any, make_launcher: Callable[..., MpiexecLauncher]) -> Launcher:
        self.environ = hosts.environ
        return make_launcher(*HOSTS)

    def code(self, launcher: Launcher) -> str:
        return (
            "from slurm.mpiexec.hosts import Host\n"
            "from slurm.mpiexec.launcher import MpiexecLauncher\n"
            f"launcher = MpiexecLauncher(map(Host, {HOSTS!r}), environ={self.environ!r},\n"
            "                           address=lambda _: '127.0.0.1')"
        )
