"""`meshtune search` as a person runs it: real processes, killed at every moment."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from analysis.run.fold import read_run
from analysis.run.lines import Lines

# A trainer of the user's: notes that it lives, takes a moment, prints its result.
TRAINER = """
import os, sys, time
tp, mbs, pids = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with open(os.path.join(pids, str(os.getpid())), "w"):
    pass
deadline = time.monotonic() + 0.3
while time.monotonic() < deadline:
    time.sleep(0.02)
if mbs == 8:
    raise MemoryError("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
if os.environ["RANK"] == "0":
    print('MESHTUNE_RESULT {"speed": %f}' % (10 * tp + mbs))
"""
SPACE = """
version: 1
name: kill
cluster: {{name: toy, gpus_per_node: 2, memory_gib: 1, peak_fp32_tflops: 0.1}}
trainer:
  command: [{python}, {trainer}, "{{tp}}", "{{mbs}}", {pids}]
parameters:
  num_nodes: [1, 2]
  tp: [1, 2]
  mbs: {{range: [1, 8]}}
objective: {{maximize: speed}}
trial: {{timeout: 60s, no_progress_timeout: 30s}}
budget: {{trials: 6}}
finalists: false
"""
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
            file.write(b'{"v": 1, "t": 17')
        die()
    write(self, event)
    if hit:
        die()
Journal.write = deadly
sys.exit(main(sys.argv[4:]))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "pids").mkdir()
    trainer = tmp_path / "train.py"
    trainer.write_text(TRAINER)
    space = SPACE.format(python=sys.executable, trainer=trainer, pids=tmp_path / "pids")
    (tmp_path / "space.yaml").write_text(space)
    return tmp_path


def search(
    place: Path, *more: str, program: tuple[str, ...] = ("-m", "workflows.cli.main")
) -> list[str]:
    command = [sys.executable, *program, "search", str(place / "space.yaml")]
    return [*command, "--run-dir", str(place / "run"), "--launcher", "local", *more]


def finish(place: Path) -> None:
    done = subprocess.run(search(place), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def check_accounts(place: Path) -> None:
    """Every trial ended for good once, none is repeated, and no process is left."""
    events = list(Lines(place / "run" / "journal.jsonl"))
    final = Counter(e["trial"] for e in events if e["event"] == "ended" and e["final"])
    assert final == dict.fromkeys(range(1, 7), 1)
    run = read_run(place / "run")
    configs = [json.dumps(t.config, sort_keys=True) for t in run.trials.values()]
    assert len(set(configs)) == 6
    for trial in run.trials.values():
        expected = "oom" if trial.config["mbs"] == 8 else "ok"
        assert (trial.kind, trial.running) == (expected, None)
    assert not living(place)


def living(place: Path) -> list[int]:
    return [int(p.name) for p in (place / "pids").iterdir() if _alive(int(p.name))]


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def until(condition: object, what: str, seconds: float = 60.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


def test_a_search_runs_to_its_report(place: Path) -> None:
    finish(place)
    check_accounts(place)
    assert (place / "run" / "report" / "index.html").stat().st_size > 1000
    assert (place / "run" / "results.csv").exists()
    # A finished search, started again, has nothing to do and loses nothing.
    finish(place)
    check_accounts(place)


@pytest.mark.parametrize(
    ("event", "count", "when"),
    [
        ("opened", 1, "torn"),
        ("opened", 1, "after"),
        ("proposed", 2, "before"),
        ("proposed", 2, "after"),
        ("started", 1, "before"),
        ("started", 1, "after"),
        ("started", 3, "torn"),
        ("ended", 2, "before"),
        ("ended", 2, "torn"),
        ("ended", 2, "after"),
        ("closed", 1, "before"),
    ],
)
def test_a_killed_driver_loses_nothing(place: Path, event: str, count: int, when: str) -> None:
    killer = place / "killer.py"
    killer.write_text(KILLER)
    program = (str(killer), event, when, str(count))
    killed = subprocess.run(search(place, program=program), capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    finish(place)
    check_accounts(place)


def test_a_killed_driver_leaves_no_process_behind(place: Path) -> None:
    driver = subprocess.Popen(search(place), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: living(place), "a rank runs")
    finally:
        driver.kill()
        driver.wait()
    until(lambda: not living(place), "the ranks died with their driver")
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
        until(lambda: living(place), "a rank runs", 180)
        running = living(place)
        shutil.copytree(place / "run", place / "copy")
        (place / "copy" / "go").touch()
        resume = [str(place / "copy") if a == str(place / "run") else a for a in search(place)]
        resumed = subprocess.run(resume, capture_output=True, text=True, timeout=180)
        assert resumed.returncode == 0, resumed.stdout + resumed.stderr
        assert set(running) <= set(living(place))
    finally:
        (place / "run" / "go").touch()
        said, _ = original.communicate(timeout=180)
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
        timeout=180,
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
    subprocess.run(search(place, program=program), check=True, capture_output=True, timeout=180)
    check_accounts(place)
    run = read_run(place / "run")
    assert run.past_sessions_s + run.last_t - run.opened_t[-1] < 3600


def test_ctrl_c_stops_cleanly_and_the_same_command_goes_on(place: Path) -> None:
    driver = subprocess.Popen(
        search(place), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    until(lambda: living(place), "a rank runs")
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate(timeout=60)
    assert driver.returncode == 130, output
    assert "resume with: meshtune search" in output
    assert not living(place)
    assert read_run(place / "run").closed == "stopped by SIGINT"
    finish(place)
    check_accounts(place)


def test_a_changed_space_does_not_continue_an_old_run(place: Path) -> None:
    finish(place)
    text = (place / "space.yaml").read_text()
    (place / "space.yaml").write_text(text.replace("[1, 8]", "[1, 4]"))
    refused = subprocess.run(search(place), capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "choose another --run-dir" in refused.stderr
    (place / "space.yaml").write_text(text.replace("trials: 6", "trials: 8"))
    raised = subprocess.run(search(place), capture_output=True, text=True, timeout=60)
    assert raised.returncode == 0, raised.stderr
    assert len(read_run(place / "run").trials) == 8


def test_a_dry_run_prints_commands_and_touches_nothing(place: Path) -> None:
    dry = subprocess.run(
        search(place, "--dry-run"), capture_output=True, text=True, timeout=60, check=True
    )
    assert f"{sys.executable} {place / 'train.py'} " in dry.stdout
    assert not (place / "run").exists()
    assert not list((place / "pids").iterdir())


def test_a_second_driver_is_refused(place: Path) -> None:
    driver = subprocess.Popen(search(place), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: living(place), "a rank runs")
        second = subprocess.run(search(place), capture_output=True, text=True, timeout=60)
        assert second.returncode == 2
        assert "another meshtune" in second.stderr
    finally:
        driver.send_signal(signal.SIGINT)
        driver.wait(timeout=60)
    assert not living(place)


def test_status_tells_how_a_run_stands(place: Path) -> None:
    finish(place)
    command = [sys.executable, "-m", "workflows.cli.main", "status", str(place / "run")]
    status = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "6 of 6 done, 0 running" in status.stdout
    assert "budget: 6 trials" in status.stdout


@pytest.mark.parametrize("command", ["status", "report"])
def test_a_folder_without_a_run_is_a_clear_error(tmp_path: Path, command: str) -> None:
    asked = subprocess.run(
        [sys.executable, "-m", "workflows.cli.main", command, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert asked.returncode == 2
    assert "journal.jsonl" in asked.stderr
    assert "Traceback" not in asked.stderr


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
        search(place, program=(str(place / "killer.py"),)), capture_output=True, timeout=120
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
        ("started", 7, "before"),
        ("started", 7, "after"),
        ("ended", 7, "torn"),
        ("ended", 7, "after"),
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
    killed = subprocess.run(search(place, program=program), capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    finish(place)
    check_accounts(place)
    trials = read_run(place / "run").trials.values()
    answered = [a for t in trials for a in t.attempts if a.repeat and a.answered]
    assert 1 <= len(answered) <= 2
    finish(place)  # nothing is left to do
    after = [a for t in read_run(place / "run").trials.values() for a in t.attempts]
    assert sum(a.repeat and a.answered for a in after) == len(answered)
