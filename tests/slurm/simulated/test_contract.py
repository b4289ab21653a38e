"""The simulated launcher keeps to what every launcher does, real processes aside."""

from __future__ import annotations

import pytest

from meshtune.testing.launchers import LauncherContract
from slurm.launcher import Launcher
from slurm.simulated.launcher import SimulatedLauncher
from support.workload import CALM, Work


class TestSimulatedLauncher(LauncherContract):
    @pytest.fixture
    def launcher(self) -> Launcher:
        return SimulatedLauncher(CALM, Work())
