"""What Slurm says of the job around the search."""

from __future__ import annotations

import pytest

from slurm.launcher import LauncherError
from slurm.minicluster.cluster import Minicluster
from slurm.srun.allocation import Allocation, parse_time_left
from slurm.srun.launcher import SrunLauncher
from slurm.srun.shell import SlurmError


@pytest.mark.slurm
def test_the_allocation_knows_its_nodes_and_its_end(launcher: SrunLauncher) -> None:
    assert len(launcher.nodes()) == 4
    left_s = launcher.time_left_s()
    assert left_s is not None
    assert 0 < left_s < 1201  # two clocks differ by rounding
    assert launcher.down_nodes() == set()


@pytest.mark.slurm
def test_an_allocation_that_is_over_is_an_error_that_says_so(minicluster: Minicluster) -> None:
    with pytest.raises(SlurmError, match="squeue"):
        Allocation("999999")


def test_outside_an_allocation_the_remedy_is_named() -> None:
    with pytest.raises(LauncherError, match="meshtune submit"):
        Allocation.current({})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30:00", 1800), ("59", 59), ("2:03:04", 7384), ("1-02:03:04", 93784), ("UNLIMITED", None)],
)
def test_slurms_time_left_is_read(text: str, seconds: float | None) -> None:
    assert parse_time_left(text) == seconds


def test_a_job_without_time_left_is_an_error() -> None:
    with pytest.raises(SlurmError, match="INVALID"):
        parse_time_left("INVALID")
