"""The local launcher keeps to what every launcher does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from meshtune.testing.process_launchers import ProcessLauncherContract
from slurm.launcher import Launcher
from slurm.local.launcher import LocalLauncher


class TestLocalLauncher(ProcessLauncherContract):
    @pytest.fixture
    def launcher(self) -> Iterator[Launcher]:
        with closing(LocalLauncher(num_nodes=2, failure_grace_s=0.5)) as launcher:
            yield launcher

    def code(self, launcher: Launcher) -> str:
        return (
            "from slurm.local.launcher import LocalLauncher\nlauncher = LocalLauncher(num_nodes=2)"
        )
