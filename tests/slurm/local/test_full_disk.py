"""What the launcher cannot write is not the trial's fault: a real file system that is full."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm.local.launcher import LocalLauncher
from slurm.outcome.classify import Outcome
from slurm.outcome.kinds import Kind
from slurm.trial import TrialSpec
from support.local_trials import log, python, run
from support.small_disk import SmallDisk, small_disk
from support.waiting import wait_for

# Says that it runs; when the disk is full, writes far more than what is left of the log's page.
TALKER = """
import os, time
print("up", flush=True)
while not os.path.exists("{full}"):
    time.sleep(0.01)
for i in range(2000):
    print(i, "x" * 20, flush=True)
open("{said}", "w").close()
while not os.path.exists("{free}"):
    time.sleep(0.01)
print('MESHTUNE_RESULT {{"speed": 7}}', flush=True)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as mounted:
        yield mounted


@pytest.fixture
def talk(
    launcher: LocalLauncher, make: Any, disk: SmallDisk, tmp_path: Path
) -> Callable[..., tuple[Outcome, TrialSpec]]:
    """Runs a talker on a disk that is full while it talks; then calls ``then``."""

    def talk(then: Callable[[], None]) -> tuple[Outcome, TrialSpec]:
        signs = {sign: tmp_path / sign for sign in ("full", "said", "free")}
        code = TALKER.format(**signs)
        spec = make(*python(code), directory=disk.path, ranks_per_node=1)
        outcomes: list[Outcome] = []
        thread = threading.Thread(target=lambda: outcomes.append(run(launcher, spec)))
        thread.start()
        wait_for(lambda: "up" in log(spec), "the rank runs")
        disk.fill()
        signs["full"].touch()
        wait_for(signs["said"].exists, "it has said all")
        then()
        signs["free"].touch()
        thread.join()
        return outcomes[0], spec

    return talk


def test_a_disk_that_is_full_for_a_while_costs_no_line(
    talk: Callable[..., tuple[Outcome, TrialSpec]], disk: SmallDisk
) -> None:
    outcome, spec = talk(disk.free)
    assert (outcome.kind, outcome.result) == (Kind.OK, {"speed": 7})
    lines = log(spec).splitlines()
    assert lines[1:-1] == [f"{i} {'x' * 20}" for i in range(2000)]


def test_a_disk_that_stays_full_is_what_ended_the_trial(
    talk: Callable[..., tuple[Outcome, TrialSpec]],
    disk: SmallDisk,
    launcher: LocalLauncher,
    make: Any,
) -> None:
    outcome, _ = talk(lambda: None)
    assert outcome.kind is Kind.DISK_FULL
    assert "stdout.log: No space left on device" in outcome.message
    assert (outcome.suspect_nodes, outcome.lost_nodes) == ((), ())
    disk.fill()
    spec = make(*python("open('result.json', 'w').write('{}')"), directory=disk.path / "next")
    with pytest.raises(OSError, match="No space left"):
        run(launcher, spec)
    disk.free()
    assert run(launcher, spec).kind is Kind.OK


def test_a_trainer_that_finds_the_disk_full_is_not_to_blame(
    launcher: LocalLauncher, make: Any, disk: SmallDisk
) -> None:
    code = "open('weights', 'wb').write(bytes(1 << 20))"
    outcome = run(launcher, make(*python(code), directory=disk.path))
    assert outcome.kind is Kind.DISK_FULL
    assert "No space left on device" in outcome.message


def test_a_trainer_that_removes_its_folder_has_crashed(launcher: LocalLauncher, make: Any) -> None:
    code = "import os, shutil; shutil.rmtree(os.getcwd(), ignore_errors=True); os._exit({code})"
    for exit_code, words in ((0, "neither result.json nor"), (3, "exit code 3")):
        spec = make(*python(code.format(code=exit_code)), ranks_per_node=1)
        outcome = run(launcher, spec)
        assert outcome.kind is Kind.CRASH
        assert words in outcome.message
    assert "rank 0 on local0 ended with exit code 3" in outcome.stderr_tail
