"""What srun cannot write is not the trial's fault: a real Slurm, and a file system that is full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm.outcome.kinds import Kind
from slurm.srun.launcher import SrunLauncher
from support.launched_trials import HANG, in_thread, pids, run_on, trial
from support.small_disk import SmallDisk, small_disk
from support.waiting import wait_for


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as mounted:
        yield mounted


@pytest.mark.slurm
def test_a_result_that_srun_could_not_write_is_not_a_crash(
    launcher: SrunLauncher, disk: SmallDisk, tmp_path: Path
) -> None:
    code = (
        f"\nwhile not os.path.exists('{tmp_path / 'go'}'): time.sleep(0.05)\n"
        "print('MESHTUNE_RESULT {\"speed\": 7}')"
    )
    spec = trial(disk.path, "full", HANG + code, ranks_per_node=1)
    thread, outcomes = in_thread(lambda: run_on(launcher, spec))
    wait_for(lambda: pids(spec), "the rank runs")
    disk.fill()
    (tmp_path / "go").touch()
    thread.join()
    assert [o.kind for o in outcomes] == [Kind.DISK_FULL]
    disk.free()
    assert run_on(launcher, spec).kind is Kind.OK
