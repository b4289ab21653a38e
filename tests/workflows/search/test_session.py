"""`meshtune search` as a person runs it: real processes, signals, a second driver, other files."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.run.fold import read_run
from support.small_search import check_accounts, finish, living, search
from support.waiting import wait_for
from workflows.cli.main import main


def test_a_search_runs_to_its_report(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"report: {place / 'run'}/report/index.html" in finish(place, options=())
    check_accounts(place)
    assert (place / "run" / "report" / "index.html").stat().st_size > 1000
    assert (place / "run" / "results.csv").exists()
    assert main(["status", str(place / "run")]) == 0
    status = capsys.readouterr().out
    assert "6 of 6 done, 0 running" in status
    assert "budget: 6 trials" in status
    # A finished search, started again, has nothing to do and loses nothing.
    finish(place)
    check_accounts(place)


def test_a_copy_of_a_running_run_is_resumed_beside_it(place: Path) -> None:
    trainer = place / "train.py"
    trainer.write_text("""
import os, sys, time
from pathlib import Path
run = Path(os.getcwd()).parents[1]
Path(sys.argv[3], str(os.getpid())).touch()
while not (run / "go").exists():
    time.sleep(0.02)
print('MESHTUNE_RESULT {"speed": 1}')
""")
    space = (place / "space.yaml").read_text()
    (place / "space.yaml").write_text(space.replace("trials: 6", "trials: 1"))
    original = subprocess.Popen(search(place), stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: living(place), "a rank runs")
        running = living(place)
        shutil.copytree(place / "run", place / "copy")
        (place / "copy" / "go").touch()
        resume = [str(place / "copy") if a == str(place / "run") else a for a in search(place)]
        resumed = subprocess.run(resume, capture_output=True, text=True, timeout=250)
        assert resumed.returncode == 0, resumed.stdout + resumed.stderr
        assert set(running) <= set(living(place))
    finally:
        (place / "run" / "go").touch()
        said, _ = original.communicate(timeout=250)
    assert original.returncode == 0, said
    (trial,) = read_run(place / "run").trials.values()
    assert [a.kind for a in trial.attempts] == ["ok"]
    (copied,) = read_run(place / "copy").trials.values()
    assert [a.kind for a in copied.attempts] == ["preempted", "ok"]
    assert trial.attempts[0].name == copied.attempts[0].name != copied.attempts[1].name


@pytest.mark.parametrize("sink", ["| head -n 1", "> /dev/full", ">&-"])
def test_a_search_that_nobody_reads_goes_on(place: Path, sink: str) -> None:
    command = f"{shlex.join(search(place))} {sink}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=250,
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, len(done.stdout.splitlines())) == (0, "head" in sink), done.stderr
    assert "Traceback" not in done.stderr
    check_accounts(place)


# Sets the machine's clock a day ahead and back whenever the driver has written an event.
SETTER = """
import sys, time
from analysis.run.journal import Journal
from workflows.cli.main import main
real, ahead_s, write = time.time, 0.0, Journal.write
time.time = lambda: real() + ahead_s
def setting(self, event):
    global ahead_s
    write(self, event)
    ahead_s = 0.0 if ahead_s else 86400.0
Journal.write = setting
sys.exit(main(sys.argv[1:]))
"""


def test_a_clock_that_is_set_spends_no_budget(place: Path) -> None:
    (place / "setter.py").write_text(SETTER)
    text = (place / "space.yaml").read_text()
    (place / "space.yaml").write_text(text.replace("trials: 6", "trials: 6, wall_time: 1h"))
    program = (str(place / "setter.py"),)
    subprocess.run(search(place, program=program), check=True, capture_output=True, timeout=250)
    check_accounts(place)
    run = read_run(place / "run")
    assert run.search_s(run.last_t) < 3600


def test_ctrl_c_stops_cleanly_and_the_same_command_goes_on(place: Path) -> None:
    (place / "pids.held").touch()  # or the search might be done before it is stopped
    driver = subprocess.Popen(
        search(place), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wait_for(lambda: living(place), "a rank runs")
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate(timeout=250)
    (place / "pids.held").unlink()
    assert driver.returncode == 130, output
    assert "resume with: meshtune search" in output
    assert not living(place)
    assert read_run(place / "run").closed == "stopped by SIGINT"
    finish(place)
    check_accounts(place)


def test_a_changed_space_does_not_continue_an_old_run(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(place)
    text = (place / "space.yaml").read_text()
    (place / "space.yaml").write_text(text.replace("[1, 8]", "[1, 4]"))
    assert main(search(place, program=())[1:]) == 2
    assert "choose another --run-dir" in capsys.readouterr().err
    (place / "space.yaml").write_text(text.replace("trials: 6", "trials: 8"))
    raised = subprocess.run(search(place), capture_output=True, text=True, timeout=250)
    assert raised.returncode == 0, raised.stderr
    assert len(read_run(place / "run").trials) == 8


def test_a_dry_run_prints_commands_and_touches_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(search(place, "--dry-run", program=())[1:]) == 0
    assert f"{sys.executable} {place / 'train.py'} " in capsys.readouterr().out
    assert not (place / "run").exists()
    assert not list((place / "pids").iterdir())


def test_a_second_driver_is_refused(place: Path) -> None:
    (place / "pids.held").touch()  # or the first might be done before the second one asks
    driver = subprocess.Popen(search(place), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: living(place), "a rank runs")
        second = subprocess.run(search(place), capture_output=True, text=True, timeout=250)
        assert second.returncode == 2
        assert "another meshtune" in second.stderr
    finally:
        driver.send_signal(signal.SIGINT)
        driver.wait(timeout=250)
    assert not living(place)


@pytest.mark.parametrize("command", ["status", "report"])
def test_a_folder_without_a_run_is_a_clear_error(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "journal.jsonl" in said
    assert "Traceback" not in said
