"""`meshtune search` whose driver is killed at any moment: nothing is lost or left behind."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from analysis.run.fold import read_run
from support.small_search import TRAINER, check_accounts, finish, living, search
from support.waiting import wait_for

# Kills the driver just before, just after, or in the middle of writing the n-th such event.
KILLER = """
import os, signal, sys
from analysis.run.journal import Journal
from workflows.cli.main import main
deadly_event, when, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
write, seen = Journal.write, 0
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def deadly(self, event):
    global seen
    hit = type(event).__name__.lower() == deadly_event
    seen += hit
    hit = hit and seen == count
    if hit and when == "before":
        die()
    if hit and when == "torn":
        with open(self.run.directory / "journal.jsonl", "ab") as file:
            file.write(b'{"v": 2, "t": 17')
        die()
    write(self, event)
    if hit:
        die()
Journal.write = deadly
sys.exit(main(sys.argv[4:]))
"""


@pytest.mark.parametrize(
    ("event", "count", "when"),
    [
        ("opened", 1, "torn"),
        pytest.param("opened", 1, "after", marks=pytest.mark.heavy),
        pytest.param("proposed", 2, "before", marks=pytest.mark.heavy),
        ("proposed", 2, "after"),
        pytest.param("started", 1, "before", marks=pytest.mark.heavy),
        pytest.param("started", 1, "after", marks=pytest.mark.heavy),
        ("started", 3, "torn"),
        ("ended", 2, "before"),
        pytest.param("ended", 2, "torn", marks=pytest.mark.heavy),
        pytest.param("ended", 2, "after", marks=pytest.mark.heavy),
        pytest.param("closed", 1, "before", marks=pytest.mark.heavy),
    ],
)
def test_a_killed_driver_loses_nothing(place: Path, event: str, count: int, when: str) -> None:
    killer = place / "killer.py"
    killer.write_text(KILLER)
    program = (str(killer), event, when, str(count))
    killed = subprocess.run(search(place, program=program), capture_output=True, timeout=250)
    assert killed.returncode == -signal.SIGKILL
    finish(place)
    check_accounts(place)


def test_a_killed_driver_leaves_no_process_behind(place: Path) -> None:
    (place / "pids.held").touch()
    driver = subprocess.Popen(search(place), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: living(place), "a rank runs")
    finally:
        driver.kill()
        driver.wait()
    (place / "pids.held").unlink()
    wait_for(lambda: not living(place), "the ranks died with their driver")
    finish(place)
    check_accounts(place)


def with_steps(place: Path) -> None:
    """Trials that say their steps: those of tp 1 are too slow, and would take an hour more."""
    (place / "train.py").write_text(
        TRAINER.replace(
            "if mbs == 8:",
            "speed = 10 * tp + mbs / 100\n"
            "for step in range(1, 7):\n"
            "    if os.environ['RANK'] == '0':\n"
            '        line = \'MESHTUNE_STEP {"step": %d, "speed": %f}\'\n'
            "        print(line % (step, speed), flush=True)\n"
            "    if step == 5 and tp == 1 and os.path.exists(pids + '.best'):\n"
            "        time.sleep(3600)\n"
            "if tp == 2:\n"
            "    open(pids + '.best', 'w').close()\n"
            "if mbs == 8:",
        ).replace("(10 * tp + mbs)", "speed")
    )
    text = (place / "space.yaml").read_text()
    text = text.replace("finalists: false", "finalists: {max_repeats: 2}").replace(
        "[1, 8]", "[1, 6]"
    )
    # One node: trials come one after the other, so that there is a best to compare with.
    (place / "space.yaml").write_text(text.replace("[1, 2]\n  tp", "[1]\n  tp"))


# Kills the driver when it has decided to stop a trial early, before it ends it.
DECIDER = """
import os, signal, sys
from workflows.cli.main import main
from workflows.search.early_stopping import EarlyStopping
judge = EarlyStopping.judge
def deadly(self, config, steps):
    found = judge(self, config, steps)
    if found:
        os.kill(os.getpid(), signal.SIGKILL)
    return found
EarlyStopping.judge = deadly
sys.exit(main(sys.argv[1:]))
"""


def test_a_driver_killed_between_an_early_stop_and_its_effect_stops_it_the_next_time(
    place: Path,
) -> None:
    with_steps(place)
    (place / "killer.py").write_text(DECIDER)
    killed = subprocess.run(
        search(place, program=(str(place / "killer.py"),)), capture_output=True, timeout=250
    )
    assert killed.returncode == -signal.SIGKILL
    finish(place)
    run = read_run(place / "run")
    stopped = [t for t in run.trials.values() if t.stopped_early]
    assert stopped and all(t.config["tp"] == 1 for t in stopped)
    assert "preempted" in [a.kind for t in stopped for a in t.attempts]
    assert run.best is not None and run.best.config["tp"] == 2
    assert not living(place)


@pytest.mark.parametrize(
    ("event", "count", "when"),
    [
        pytest.param("started", 7, "before", marks=pytest.mark.heavy),
        pytest.param("started", 7, "after", marks=pytest.mark.heavy),
        ("ended", 7, "torn"),
        pytest.param("ended", 7, "after", marks=pytest.mark.heavy),
    ],
)
def test_a_driver_killed_among_its_finalists_goes_on(
    place: Path, event: str, count: int, when: str
) -> None:
    text = (place / "space.yaml").read_text()
    repeats = "finalists: {confidence: 0.99, max_repeats: 2}"
    (place / "space.yaml").write_text(text.replace("finalists: false", repeats))
    (place / "killer.py").write_text(KILLER)
    program = (str(place / "killer.py"), event, when, str(count))
    killed = subprocess.run(search(place, program=program), capture_output=True, timeout=250)
    assert killed.returncode == -signal.SIGKILL
    finish(place)
    check_accounts(place)
    trials = read_run(place / "run").trials.values()
    answered = [a for t in trials for a in t.attempts if a.repeat and a.completed]
    assert 1 <= len(answered) <= 2
    finish(place)  # nothing is left to do
    after = [a for t in read_run(place / "run").trials.values() for a in t.attempts]
    assert sum(a.repeat and a.completed for a in after) == len(answered)
