"""The report after a search: a process of its own, which takes nothing along when it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import meshtune
from analysis import RunFolder
from foundation.python import module_argv
from support.scripted_launcher import ScriptedLauncher, ok
from support.waiting import wait_for
from workflows.search.reporting import report_line, run_bounded
from workflows.search.stopping import CONTINUE, DONE, Ending

ASLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]
SEARCH = (
    *("search", "gpt_22b_frontier", "--launcher", "simulate", "--trials", "6"),
    *("--policy", "random", "--run-dir"),
)


def reporters(run: Path) -> list[int]:
    """Processes that write this run's report."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"workflows.search.reporting" in command and str(run).encode() in command:
            found.append(int(process.name))
    return found


def test_a_report_that_takes_too_long_is_killed_and_that_is_said() -> None:
    assert run_bounded(ASLEEP, 0.2) == "it took more than 0 s"


def test_a_report_that_fails_says_why_in_one_line() -> None:
    failing = [sys.executable, "-c", "raise MemoryError('no room')"]
    assert run_bounded(failing, 250.0) == "MemoryError: no room"
    assert "No such file" in run_bounded(["/nowhere/python"], 60.0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_report_is_written_ends_the_report_alone(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    def send() -> None:
        wait_for(lambda: signal.getsignal(number) is not before, "the signal is heeded")
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        assert run_bounded(ASLEEP, 250.0) == f"stopped by {number.name}"
    finally:
        sender.join()
    assert signal.getsignal(number) is before


class EndsIn(ScriptedLauncher):
    """A launcher in an allocation that ends soon."""

    left_s = 3600.0

    def time_left_s(self) -> float:
        return self.left_s


def test_no_report_where_work_or_no_time_is_left(tmp_path: Path) -> None:
    launcher, folder = EndsIn(lambda n, a, lease: ok()), RunFolder(tmp_path / "run")
    line = report_line(folder, launcher, Ending("the allocation ends", CONTINUE))
    assert "is written when the search is done" in line and f"meshtune report {folder.path}" in line
    launcher.left_s = 21.0
    line = report_line(folder, launcher, Ending("budget: 6 trials", DONE))
    assert line.startswith("no time is left") and "meshtune report" in line
    launcher.left_s = 3600.0  # and it says so where there is no run at all
    line = report_line(folder, launcher, Ending("budget: 6 trials", DONE))
    assert "not written (RunError: " in line and "\n" not in line


def test_a_killed_report_changes_neither_the_exit_code_nor_the_results(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = module_argv("meshtune", *SEARCH, str(run))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 600
    while not (found := reporters(run)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(found[0], signal.SIGKILL)
    said, _ = process.communicate(timeout=250)
    assert process.returncode == 0, said
    last = said.splitlines()[-1]
    assert last.startswith("the report was not written (killed by SIGKILL); `meshtune report")
    assert (run / "results.csv").read_text().count("\n") == 7
    assert meshtune.report(run).stat().st_size > 1000


def test_a_killed_driver_takes_its_report_along(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = module_argv("meshtune", *SEARCH, str(run))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while not reporters(run):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    while reporters(run):
        assert time.monotonic() < deadline
        time.sleep(0.01)
