"""``meshtune train`` on a real Slurm, twice at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm import processes
from slurm.minicluster.cluster import Minicluster
from support.waiting import wait_for

pytestmark = pytest.mark.slurm

TRAINER = """
import os, sys, time
open("starting", "w").write(str(os.getpid()))
os.rename("starting", "up")
while not os.path.exists("go"):
    time.sleep(0.02)
print('MESHTUNE_RESULT {"speed": 7}')
"""


def test_trainings_in_one_allocation_do_not_end_each_other_and_end_with_their_driver(
    minicluster: Minicluster, allocate: Callable[[int], str], tmp_path: Path
) -> None:
    best = tmp_path / "best.yaml"
    command = json.dumps([sys.executable, "-c", TRAINER])
    best.write_text(f"meshtune_best: 1\nnum_nodes: 1\nranks_per_node: 1\ncommand: {command}\n")
    job = allocate(1)

    def train(out: Path) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "workflows.cli.main", "train", str(best), "--out", str(out)]
        environ = {**os.environ, "SLURM_JOB_ID": job}
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, env=environ, stdout=pipe, stderr=pipe, text=True)

    folders = [tmp_path / name / "train" for name in ("a", "b")]
    first, second = map(train, folders)
    try:
        wait_for(lambda: all((out / "up").exists() for out in folders), "both train")
        refused = train(folders[0])
        assert "another meshtune works there" in refused.communicate(timeout=250)[1]
        assert refused.returncode == 2
        (folders[0] / "go").touch()
        assert first.wait(250) == 0
        left = int((folders[1] / "up").read_text())
        assert processes.is_running(left)
        (folders[1] / "up").unlink()
        second.kill()  # as kill -9 does
        second.wait()
        third = train(folders[1])
        wait_for((folders[1] / "up").exists, "it trains again")
        assert not processes.is_running(left)
        (folders[1] / "go").touch()
        assert "speed" in third.communicate(timeout=250)[0]
        assert third.returncode == 0
    finally:
        for training in (first, second):
            training.kill()
            training.communicate()
        minicluster.run("scancel", job)
        wait_for(lambda: not minicluster.run("squeue", "-h"), "the queue is empty")
