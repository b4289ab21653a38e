"""A search on a disk that is full for a while: a real file system, real trials."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from analysis.run.fold import read_run
from slurm.outcome.classify import Outcome
from slurm.trial import Lease
from support.scripted_launcher import ScriptedLauncher, ok
from support.small_disk import SmallDisk, small_disk
from support.small_search import QUICK
from support.waiting import wait_for
from workflows.search.driver import Driver

MakeDriver = Callable[..., Driver]
TRAINER = """
import os, sys, time
open(sys.argv[1] + ".up", "w").close()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
print("x" * 5000, 'MESHTUNE_RESULT {"speed": 7}', sep="\\n")
"""
SPACE = """
version: 1
name: full
cluster: {{name: toy, gpus_per_node: 1, memory_gib: 1, peak_fp32_tflops: 0.1}}
trainer: {{command: [{python}, {trainer}, {go}, "{{mbs}}"]}}
parameters: {{mbs: {{range: [1, 8]}}}}
objective: {{maximize: speed}}
trial: {{timeout: 600s}}
budget: {{trials: 3}}
finalists: false
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", "4m") as mounted:
        yield mounted


@pytest.fixture
def command(tmp_path: Path, disk: SmallDisk) -> list[str]:
    """A search on the small disk, whose trials wait for a file ``go``."""
    (tmp_path / "train.py").write_text(TRAINER)
    place = {"python": sys.executable, "trainer": tmp_path / "train.py", "go": tmp_path / "go"}
    (tmp_path / "space.yaml").write_text(SPACE.format(**place))
    search = [sys.executable, "-m", "meshtune", "search", str(tmp_path / "space.yaml")]
    return [*search, "--run-dir", str(disk.path / "run"), "--launcher", "local", *QUICK]


def started(command: list[str], tmp_path: Path, disk: SmallDisk) -> subprocess.Popen[bytes]:
    """The search, when it waits for room to write how its first trial has ended."""
    said, go, up = (tmp_path / name for name in ("said", "go", "go.up"))
    for sign in (go, up):
        sign.unlink(missing_ok=True)
    with said.open("w") as output:
        driver = subprocess.Popen(command, stdout=output, stderr=output)
    wait_for(up.exists, "the first trial runs")
    disk.fill()
    go.touch()
    wait_for(lambda: "the search waits" in said.read_text(), "the search says that it waits")
    return driver


def test_a_search_waits_for_room_and_loses_nothing(
    command: list[str], tmp_path: Path, disk: SmallDisk
) -> None:
    driver = started(command, tmp_path, disk)
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(250) == 3, (tmp_path / "said").read_text()
    disk.free()
    driver = started(command, tmp_path, disk)
    disk.free()
    said = tmp_path / "said"
    assert driver.wait(250) == 0, said.read_text()
    assert "No space left on device" in said.read_text()
    assert "the search continues" in said.read_text()
    run = read_run(disk.path / "run")
    assert [t.kind for t in run.trials.values()] == ["ok"] * 3
    written = map(json.loads, (disk.path / "run" / "journal.jsonl").read_text().splitlines())
    events = [(r["event"], r["trial"], r.get("attempt")) for r in written if "trial" in r]
    assert len(events) == len(set(events))


def test_results_that_cannot_be_written_are_told_once_and_written_later(
    make_driver: MakeDriver, tmp_path: Path
) -> None:
    notices: list[str] = []

    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        if number == 6:
            (tmp_path / "run" / "results.csv").rmdir()
        return ok(number)

    def listen(event: object, driver: Driver) -> None:
        if isinstance(event, str):
            notices.append(event)

    driver = make_driver(ScriptedLauncher(script), listen=listen)
    (tmp_path / "run" / "results.csv").mkdir()
    assert driver.run().code == 0
    assert len((tmp_path / "run" / "results.csv").read_text().splitlines()) == 7
    assert len(notices) == 1 and "results.csv is not written: Is a directory" in notices[0]
