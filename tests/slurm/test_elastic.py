"""``meshtune train --elastic`` on a real Slurm, which loses a node, then the job, then has more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from analysis import RunError, Trial, read_run
from benchmarks.power_cuts import kill_node, revive_node
from slurm.local.launcher import LocalLauncher
from slurm.minicluster.cluster import Minicluster
from support.elastic_run import BATCH, SEQ, losses, searched
from support.waiting import wait_for
from workflows.elastic import train_elastic

pytestmark = pytest.mark.slurm

STEPS, PATIENCE_S = 60, 400.0


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.heavy)])
def test_a_training_goes_on_after_a_lost_node_and_in_another_allocation(
    minicluster: Minicluster, allocate: Callable[[int], str], tmp_path: Path, ranks: int
) -> None:
    run, out, tokens = searched(tmp_path, 256, ranks), tmp_path / "out", STEPS * BATCH * SEQ
    argv = [sys.executable, "-m", "workflows.cli.main", "train", str(run), "--elastic"]
    argv += ["--tokens", str(tokens), "--out", str(out)]

    def train(job: str) -> subprocess.Popen[str]:
        environ, pipe = {**os.environ, "SLURM_JOB_ID": job}, subprocess.PIPE
        return subprocess.Popen(argv, env=environ, stdout=pipe, stderr=pipe, text=True)

    def starts() -> Sequence[Trial]:
        try:
            return list(read_run(out).trials.values())
        except RunError:
            return ()

    def saved() -> int:
        names = [path.name.removeprefix("step-") for path in (out / "checkpoints").glob("step-*")]
        return max((int(name) for name in names if name.isdecimal()), default=0)

    driver, lost = train(job := allocate(2)), ""
    try:
        wait_for(lambda: saved() > 0, "a checkpoint", PATIENCE_S)
        lost = starts()[-1].attempts[0].nodes[-1]
        kill_node(minicluster, lost)
        began = saved()
        wait_for(lambda: saved() > began, "it goes on", PATIENCE_S)
        assert lost not in starts()[-1].attempts[0].nodes
        minicluster.run("scancel", job)
        said = driver.communicate(timeout=PATIENCE_S)
        assert driver.returncode == 3, said
        revive_node(minicluster, lost)
        before = len(starts())
        driver = train(job := allocate(3))
        said = driver.communicate(timeout=PATIENCE_S)
        assert driver.returncode == 0, said
        assert starts()[before].result["finished_before"] > 0
    finally:
        driver.kill()
        driver.communicate()
        minicluster.run("scancel", job)
        wait_for(lambda: not minicluster.run("squeue", "-h"), "the queue is empty")
        if lost and minicluster.node_states()[lost] != "idle":
            revive_node(minicluster, lost)
    with closing(LocalLauncher(1)) as launcher:
        assert train_elastic(run, launcher, tmp_path / "whole", tokens) == 0
    found, whole = losses(out), losses(tmp_path / "whole")
    assert len(found) == STEPS
    assert list(found.values()) == pytest.approx(list(whole.values()), rel=1e-6)
