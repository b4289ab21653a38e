"""What every launcher does, as tests of the srun launcher, however it gives trials their ranks."""

from __future__ import annotations

import pytest

from meshtune.testing.launchers import MakeTrial
from meshtune.testing.process_launchers import ProcessLauncherContract
from slurm.launcher import Launcher
from slurm.minicluster.cluster import Minicluster
from slurm.srun.launcher import SrunLauncher
from slurm.trial import TrialSpec


class SrunContract(ProcessLauncherContract):
    """Needs the fixtures `launcher`, on real nodes, and `minicluster`."""

    @pytest.fixture
    def launcher(self, launcher: SrunLauncher) -> Launcher:
        self.allocation = launcher.allocation
        return launcher

    def code(self, launcher: Launcher) -> str:
        return (
            "from slurm.srun.allocation import Allocation\n"
            "from slurm.srun.launcher import SrunLauncher\n"
            "from slurm.srun.site import Site\n"
            f"launcher = SrunLauncher(Site.load('generic'), Allocation({self.allocation.job!r}))"
        )

    def test_a_trial_that_is_stopped_is_cancelled_and_leaves_nothing(
        self, trial: MakeTrial, minicluster: Minicluster
    ) -> None:
        if not minicluster.config.cgroup:
            pytest.skip("without cgroups, Slurm loses sight of what leaves its session")
        super().test_a_trial_that_is_stopped_is_cancelled_and_leaves_nothing(trial)

    def assert_gone(self, spec: TrialSpec) -> None:
        super().assert_gone(spec)
        assert spec.name not in {step.name for step in self.allocation.steps()}
