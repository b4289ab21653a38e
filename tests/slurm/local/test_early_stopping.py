"""A trial that ends, one way or another, just as it is stopped early; with real processes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm.local.launcher import LocalLauncher
from slurm.logs.patterns import LogFormat, Pattern
from slurm.outcome.classify import Outcome
from slurm.outcome.kinds import Kind
from slurm.outcome.step_log import EarlyStop, StepReport
from slurm.trial import Lease, TrialSpec

EARLY = EarlyStop("stopped early", {"status": "ok", "speed": 3.0}, saved_s=12.0)
SPEAK = """
import json, os, signal, sys, time
def say(step):
    if os.environ["RANK"] == "0":
        print("MESHTUNE_STEP", json.dumps({"step": step, "speed": 3.0}), flush=True)
def linger():
    print("here", flush=True)
    time.sleep(600)
"""


def run(
    launcher: LocalLauncher, folder: Path, program: str, stop_rule: object = None, **more: object
) -> Outcome:
    argv = (sys.executable, "-c", SPEAK + program)
    spec = TrialSpec("t-0001-1", folder, argv, 1, 2, timeout_s=600.0, **{"grace_s": 60.0, **more})
    return launcher.run(spec, Lease("1", ("local0",)), threading.Event(), stop_rule)


def after(count: int) -> object:
    def judge(steps: Sequence[StepReport]) -> EarlyStop | None:
        return EARLY if len(steps) >= count else None

    return judge


def test_a_trial_that_the_rule_lets_go_on_runs_to_its_end(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    program = "say(1); say(2); print('MESHTUNE_RESULT {\"speed\": 9.0}')"
    outcome = run(launcher, tmp_path, program, after(3))
    assert (outcome.kind, outcome.stopped_early, outcome.result) == (Kind.OK, False, {"speed": 9.0})


def test_figures_of_a_log_that_was_cut_short_are_not_the_trials(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    log = LogFormat({"speed": [Pattern("speed so far ([0-9.]+)")]})
    program = "print('speed so far 99.0', flush=True); say(1); linger()"
    outcome = run(launcher, tmp_path, program, after(1), log=log)
    assert outcome.stopped_early and outcome.result == EARLY.result


@pytest.mark.parametrize("code", ["0", "7"])
def test_a_trial_that_ends_just_as_it_is_stopped_keeps_its_own_result(
    launcher: LocalLauncher, tmp_path: Path, code: str
) -> None:
    """Its result is there before the decision; then it leaves by itself, or by our signal."""
    program = (
        "from pathlib import Path\n"
        f"signal.signal(signal.SIGTERM, lambda *_: os._exit({code}))\n"
        "say(1)\n"
        "if os.environ['RANK'] == '0':\n"
        '    Path(\'part\').write_text(\'{"status": "ok", "speed": 8.0}\')\n'
        "    Path('part').rename('result.json')\n"
        "linger()"
    )

    def judge(_: Sequence[StepReport]) -> EarlyStop | None:
        return EARLY if (tmp_path / "result.json").exists() else None

    program = program.replace("linger()", "say(2); linger()")
    outcome = run(launcher, tmp_path, program, judge)
    assert (outcome.kind, outcome.stopped_early) == (Kind.OK, False)
    assert outcome.result == {"status": "ok", "speed": 8.0}


def test_a_trial_out_of_memory_as_it_is_stopped_has_failed(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    program = (
        "from pathlib import Path\n"
        "if os.environ['RANK'] == '0':\n"
        '    Path(\'result.json\').write_text(\'{"status": "oom", "message": "gone"}\')\n'
        "say(1); linger()"
    )
    outcome = run(launcher, tmp_path, program, after(1))
    assert (outcome.kind, outcome.stopped_early) == (Kind.OOM, False)


def test_a_trial_that_ignores_the_polite_signal_is_killed(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    program = "signal.signal(signal.SIGTERM, signal.SIG_IGN); say(1); linger()"
    outcome = run(launcher, tmp_path, program, after(1), grace_s=0.3)
    assert outcome.stopped_early
    assert "signal 9" in (tmp_path / "stderr.log").read_text()
