"""The mpiexec launcher, on a real MPI, keeps to what every launcher does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshtune.testing.process_launchers import ProcessLauncherContract
from slurm.launcher import Launcher
from slurm.mpiexec.launcher import MpiexecLauncher
from slurm.trial import TrialSpec
from support.launched_trials import marked


class TestMpiexecLauncher(ProcessLauncherContract):
    @pytest.fixture
    def launcher(self, make_launcher: Callable[..., MpiexecLauncher], hosts: Any) -> Launcher:
        self.settings = hosts.settings
        return make_launcher("node0", "node1")

    def code(self, launcher: Launcher) -> str:
        return (
            "import os\n"
            "from slurm.mpiexec.hosts import Host\n"
            "from slurm.mpiexec.launcher import MpiexecLauncher\n"
            f"environ = os.environ | {self.settings!r}\n"
            f"launcher = MpiexecLauncher(map(Host, {launcher.nodes()!r}), environ=environ)"
        )

    def assert_gone(self, spec: TrialSpec) -> None:
        """Neither ranks, nor the mpiexec and the daemons that started them."""
        super().assert_gone(spec)
        assert not marked(spec)
