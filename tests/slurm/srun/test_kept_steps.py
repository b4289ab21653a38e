"""Steps that are kept from trial to trial, on a real Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshtune.testing.launchers import Running
from slurm import processes
from slurm.minicluster.cluster import Minicluster
from slurm.outcome.kinds import Kind
from slurm.srun.launcher import SrunLauncher
from slurm.trial import Kept, TrialSpec, carries
from support.launched_trials import run_on, trial
from support.srun_contract import SrunContract
from support.srun_trials import step_names
from support.waiting import wait_for

KEPT = Kept(f"tested-{os.getpid()}-ranks", ("tomllib",))  # of no other session
OK = """
import os, sys
from pathlib import Path
Path("server" + os.environ["RANK"]).write_text(str(os.getppid()))
print("COLOUR", os.environ.get("COLOUR"), "imported", "tomllib" in sys.modules)
print("half a line", end="", flush=True)
if os.environ["RANK"] == "0":
    Path("result.json").write_text('{"status": "ok"}')
"""


@pytest.mark.slurm
class TestKeptSteps(SrunContract):
    """The launcher keeps to what every launcher does, with trials that are forked."""

    def start(self, spec: TrialSpec, *how: Any, **more: Any) -> Running:
        return super().start(replace(spec, kept=KEPT), *how, **more)


@pytest.fixture
def kept(launcher: SrunLauncher) -> Iterator[SrunLauncher]:
    """The launcher, which keeps no step before or after a test."""
    yield launcher
    launcher.close()
    assert not kept_steps(launcher)
    assert not servers()


def kept_steps(launcher: SrunLauncher) -> set[str]:
    return {name for name in step_names(launcher) if name.startswith(f"{KEPT.mark}-")}


def servers() -> set[int]:
    """Processes of the test's kept steps: their sruns, servers and ranks."""
    return processes.with_environ(lambda env: carries(env, {KEPT.mark}))


def kept_trial(folder: Path, name: str, code: str = OK, **changes: Any) -> TrialSpec:
    return trial(folder, name, code, **{"kept": KEPT, **changes})


def parents(spec: TrialSpec) -> list[int]:
    """The servers that had forked the trial's ranks."""
    return [int(path.read_text()) for path in sorted(spec.directory.glob("server*"))]


@pytest.mark.slurm
def test_the_next_trial_is_forked_by_the_same_processes(kept: SrunLauncher, tmp_path: Path) -> None:
    first = kept_trial(tmp_path, "first", env={"COLOUR": "red"})
    second = kept_trial(tmp_path, "second")
    for spec, colour in ((first, "red"), (second, "None")):
        outcome = run_on(kept, spec)
        assert (outcome.kind, outcome.exit_code) == (Kind.OK, 0), outcome
        said = (spec.directory / "stdout.log").read_text()
        assert sorted(said.splitlines()) == 2 * [f"COLOUR {colour} imported True"] + 2 * [
            "half a line"
        ]
        assert (spec.directory / "stderr.log").read_text() == ""
    assert parents(first) == parents(second)
    [step] = kept_steps(kept)
    command = (second.directory / "command.txt").read_text()
    assert step in command and f"--job-name={second.name}" in command


@pytest.mark.slurm
def test_a_crash_ends_its_trial_and_a_signal_its_step(kept: SrunLauncher, tmp_path: Path) -> None:
    crash = kept_trial(tmp_path, "crash", f"{OK}\n1 / 0")
    outcome = run_on(kept, crash)
    assert (outcome.kind, outcome.exit_code) == (Kind.CRASH, 1), outcome
    assert "ZeroDivisionError" in outcome.stderr_tail
    assert "meshtune: rank 0 on " in outcome.stderr_tail
    [step] = kept_steps(kept)
    killed = kept_trial(tmp_path, "killed", f"{OK.split('if ')[0]}\nos.kill(os.getpid(), 9)")
    outcome = run_on(kept, killed)
    assert (outcome.kind, outcome.exit_code) == (Kind.PREEMPTED, -9), outcome
    assert parents(crash) == parents(killed)
    assert not kept_steps(kept)
    after = kept_trial(tmp_path, "after")
    assert run_on(kept, after).kind is Kind.OK
    assert kept_steps(kept) != {step}


@pytest.mark.slurm
def test_a_forked_rank_over_its_hosts_memory_is_told_from_a_crash(
    kept: SrunLauncher, minicluster: Minicluster, tmp_path: Path
) -> None:
    if not minicluster.config.cgroup:
        pytest.skip("cgroups do not work on this machine")
    fits = kept_trial(tmp_path, "fits", memory_bytes_per_rank=64 << 20)
    assert run_on(kept, fits).kind is Kind.OK
    code = "import os; x = bytearray(400 << 20) if os.environ['RANK'] == '1' else b''"
    hog = kept_trial(tmp_path, "hog", code, memory_bytes_per_rank=64 << 20)
    outcome = run_on(kept, hog)
    assert outcome.kind is Kind.HOST_OOM, outcome
    assert outcome.suspect_nodes == outcome.lost_nodes == ()


@pytest.mark.slurm
def test_a_trial_that_a_kept_step_cannot_serve_ends_it_first(
    kept: SrunLauncher, tmp_path: Path
) -> None:
    specs = [
        kept_trial(tmp_path, "narrow"),
        kept_trial(tmp_path, "wide", num_nodes=2),
        kept_trial(tmp_path, "settings", env={"PYTHONHASHSEED": "1"}),
        kept_trial(tmp_path, "alone", kept=None),
    ]
    seen = []
    for spec, steps in zip(specs, (1, 1, 1, 0), strict=True):
        assert run_on(kept, spec).kind is Kind.OK
        assert len(kept_steps(kept)) == steps
        seen.append(parents(spec))
    assert not set(seen[0]) & set(seen[1]) and not set(seen[1]) & set(seen[2])


@pytest.mark.slurm
def test_a_step_whose_srun_was_killed_while_it_waited_is_replaced(
    kept: SrunLauncher, tmp_path: Path
) -> None:
    first, second, third = (kept_trial(tmp_path, name) for name in ("first", "second", "third"))
    assert run_on(kept, first).kind is Kind.OK
    sruns = {pid for pid in servers() if processes.name(pid) == "srun"}
    processes.send(sruns, signal.SIGKILL)
    wait_for(lambda: not any(map(processes.is_running, sruns)), "srun is gone")
    # One of its threads may be the last to go, while it is handed a trial; that one runs again.
    assert run_on(kept, second).kind in (Kind.OK, Kind.PREEMPTED)
    assert run_on(kept, third).kind is Kind.OK
    assert parents(first) != parents(third)


@pytest.mark.slurm
def test_what_a_killed_driver_kept_is_settled_and_ends_by_itself(
    kept: SrunLauncher, tmp_path: Path
) -> None:
    code = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from slurm.srun.allocation import Allocation\n"
        "from slurm.srun.launcher import SrunLauncher\n"
        "from slurm.srun.site import Site\n"
        "from slurm.trial import Kept, Lease, TrialSpec\n"
        f"launcher = SrunLauncher(Site.load('generic'), Allocation({kept.allocation.job!r}))\n"
        "def run(name, node, argv):\n"
        "    spec = TrialSpec(name, Path(name).absolute(), argv, 1, 2, 600.0,"
        f" kept=Kept({KEPT.mark!r}, ()))\n"
        "    spec.directory.mkdir()\n"
        "    launcher.run(spec, Lease(name, (launcher.nodes()[node],)), threading.Event())\n"
        "run('idle', 0, (sys.executable, '-c', ''))\n"
        "run('busy', 1, (sys.executable, '-c', \"open('ready', 'w'); import time;"
        ' time.sleep(600)"))\n'
    )
    driver = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    wait_for((tmp_path / "busy" / "ready").exists, "a rank runs")
    assert len(kept_steps(kept)) == 2
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    kept.settle([KEPT.mark])
    assert not kept_steps(kept)
    assert not servers()


@pytest.mark.slurm
def test_ranks_that_end_within_a_long_line_are_all_seen_to_end(
    kept: SrunLauncher, tmp_path: Path
) -> None:
    """Slurm cuts lines of more than 1 KiB, and another rank's words follow."""
    code = f"{OK}\nfor out in (sys.stdout, sys.stderr): out.write('x' * int(os.environ['SIZE']))"
    for extra in (999, 1023, 0):
        env = {"SIZE": str((20 << 10) + extra)}
        spec = kept_trial(tmp_path, f"long{extra}", code, num_nodes=4, env=env)
        assert run_on(kept, spec).kind is Kind.OK
        said = (spec.directory / "stderr.log").read_text()
        assert (said.count("x"), set(said)) == (8 * int(env["SIZE"]), {"x", "\n"})
    assert len(kept_steps(kept)) == 1


@pytest.mark.slurm
def test_a_helper_that_the_kernel_killed_is_not_held_against_a_later_trial(
    kept: SrunLauncher, minicluster: Minicluster, tmp_path: Path
) -> None:
    if not minicluster.config.cgroup:
        pytest.skip("cgroups do not work on this machine")
    hog = (
        "import subprocess, sys\n"
        "hog = [sys.executable, '-c', 'x = bytearray(400 << 20)']\n"
        "open('helper', 'w').write(str(subprocess.run(hog).returncode))\n"
    )
    lossy = kept_trial(tmp_path, "lossy", hog + OK, memory_bytes_per_rank=64 << 20)
    assert run_on(kept, lossy).kind is Kind.OK
    assert (lossy.directory / "helper").read_text() == "-9"
    code = "import os; os.kill(os.getpid(), 11)"
    broken = kept_trial(tmp_path, "broken", code, memory_bytes_per_rank=64 << 20)
    assert run_on(kept, broken).kind is Kind.CRASH
    assert not kept_steps(kept)


@pytest.mark.slurm
def test_a_step_is_not_lost_when_its_trial_cannot_be_written(
    kept: SrunLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_on(kept, kept_trial(tmp_path, "first")).kind is Kind.OK

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("slurm.srun.launcher.write_private", full)
        with pytest.raises(OSError, match="No space left"):
            run_on(kept, kept_trial(tmp_path, "second"))
    assert not kept_steps(kept)


@pytest.mark.slurm
def test_a_variable_of_an_earlier_trial_is_as_it_was_before(
    kept: SrunLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLOUR", "of the driver")
    for name, env, colour in (
        ("first", {"COLOUR": "red"}, "red"),
        ("second", {}, "of the driver"),
        ("third", {"COLOUR": "blue"}, "blue"),
    ):
        spec = kept_trial(tmp_path, name, env=env)
        assert run_on(kept, spec).kind is Kind.OK
        assert f"COLOUR {colour} imported" in (spec.directory / "stdout.log").read_text()
    assert len(kept_steps(kept)) == 1


@pytest.mark.slurm
def test_an_interpreter_that_is_nowhere_is_a_failed_launch(
    kept: SrunLauncher, tmp_path: Path
) -> None:
    spec = kept_trial(tmp_path, "nowhere")
    outcome = run_on(kept, replace(spec, argv=("/nowhere/python3", *spec.argv[1:])))
    assert outcome.kind is Kind.LAUNCH_FAILURE, outcome
    assert "no program /nowhere/python3" in outcome.message
    assert not kept_steps(kept)
