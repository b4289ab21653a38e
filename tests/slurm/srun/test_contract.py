"""The srun launcher, on a real Slurm, keeps to what every launcher does."""

from __future__ import annotations

import pytest

from support.srun_contract import SrunContract


@pytest.mark.slurm
class TestSrunLauncher(SrunContract):
    """With a step for each trial."""
