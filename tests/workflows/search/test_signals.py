"""Ctrl-C, TERM, HUP and USR1 while a search runs."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from search_spaces import SearchSpace
from support.scripted_launcher import ScriptedLauncher, ok
from workflows.search.driver import Driver
from workflows.search.progress import Progress
from workflows.search.session import stop_on_signals
from workflows.search.stopping import CONTINUE, FAILED, Ending

Make = Callable[..., SearchSpace]
MakeDriver = Callable[..., Driver]


def test_only_the_second_ctrl_c_leaves_at_once_also_if_the_search_is_stopping_by_itself(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    driver = make_driver(ScriptedLauncher(lambda n, a, lease: ok()))
    with Progress(Console(file=io.StringIO())) as progress, stop_on_signals(driver, progress):
        driver.stop(Ending("nothing works", FAILED))
        signal.raise_signal(signal.SIGINT)
        assert not left
        signal.raise_signal(signal.SIGINT)
    assert left == [130]


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_is_closed_stops_the_search_cleanly_unless_nohup_started_it(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch, ignored: bool
) -> None:
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("left at once"))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    driver = make_driver(ScriptedLauncher(lambda n, a, lease: ok()))
    try:
        with Progress(Console(file=io.StringIO())) as progress, stop_on_signals(driver, progress):
            for _ in range(2):  # the kernel's, and the shell's
                signal.raise_signal(signal.SIGHUP)
            ending = driver.run()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (ending == Ending("stopped by SIGHUP", CONTINUE)) is not ignored


ALONE = """
import sys
from pathlib import Path
from types import SimpleNamespace
from workflows.launching import run_alone

def run(spec, lease, stop, rule):
    print("begun", flush=True)
    if stop.wait(60):
        print("ends", flush=True)  # to a terminal that is no more
        Path(sys.argv[1]).write_text("ended cleanly")

run_alone(SimpleNamespace(run=run), None, None)
"""


def test_a_terminal_that_is_closed_ends_a_single_trial_cleanly(tmp_path: Path) -> None:
    child, terminal = pty.fork()
    if not child:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.execv(sys.executable, [sys.executable, "-c", ALONE, str(tmp_path / "end")])
    assert b"begun" in os.read(terminal, 100)
    os.close(terminal)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "end").read_text() == "ended cleanly"


class Interrupting(io.RawIOBase):
    """A terminal at which somebody presses Ctrl-C in the middle of a line."""

    pressed = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self.pressed:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)
        return len(data)


def test_a_ctrl_c_in_the_middle_of_a_line_of_output_stops_the_search_cleanly(
    make_driver: MakeDriver,
) -> None:
    out = io.TextIOWrapper(io.BufferedWriter(Interrupting()))
    with Progress(Console(file=out)) as progress:
        driver = make_driver(ScriptedLauncher(lambda n, a, lease: ok()), listen=progress)
        with stop_on_signals(driver, progress):
            assert driver.run() == Ending("stopped by SIGINT", 130)


SPACE = """\
version: 1
objective: {maximize: speed}
trainer: {command: [echo, 'MESHTUNE_RESULT {"speed": 1}']}
budget: {trials: 1}
parameters: {x: [1]}
"""
WARNED_LATE = """\
import os, signal, sys
from meshtune.__main__ import main
class Late:
    def __del__(self, kill=os.kill, me=os.getpid(), number=signal.SIGUSR1):
        kill(me, number)  # Python has given its own handlers the default back by now
sys.argv[1:] = ["search", "space.yaml", "--launcher", "local", "--no-report"]
code = main()
late = Late()
raise SystemExit(code)
"""


def test_slurms_warning_does_not_end_a_search_that_is_done_and_leaves(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    done = subprocess.run(
        [sys.executable, "-c", WARNED_LATE], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
