from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from slurm.outcome.watch import Termination, watch
from slurm.trial import TrialSpec


def spec(folder: Path, **changes: Any) -> TrialSpec:
    return TrialSpec("t-1", folder, ("x",), 1, 1, **{"timeout_s": 30.0, **changes})


def test_processes_that_end_by_themselves_have_exited(tmp_path: Path) -> None:
    assert watch(spec(tmp_path), lambda: True, threading.Event()).termination is Termination.EXITED


def test_an_end_by_itself_counts_even_when_a_stop_came_at_the_same_time(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    assert watch(spec(tmp_path), lambda: True, stop).termination is Termination.EXITED
    assert watch(spec(tmp_path), lambda: False, stop).termination is Termination.STOPPED


def test_a_stop_ends_a_watch_that_waits(tmp_path: Path) -> None:
    stop = threading.Event()
    timer = threading.Timer(0.2, stop.set)
    timer.start()
    assert watch(spec(tmp_path), lambda: False, stop).termination is Termination.STOPPED
    timer.join()


def test_the_hard_timeout_ends_even_what_makes_progress(tmp_path: Path) -> None:
    def chatter() -> bool:
        with (tmp_path / "stdout.log").open("a") as log:
            log.write("step\n")
        return False

    given = spec(tmp_path, timeout_s=0.5, no_progress_timeout_s=0.3)
    watched = watch(given, chatter, threading.Event())
    assert watched.termination is Termination.TIMEOUT
    assert watched.elapsed_s >= 0.5


@pytest.mark.parametrize("name", ["stdout.log", "stderr.log"])
def test_silence_in_both_logs_is_no_progress_and_growth_of_either_is(
    tmp_path: Path, name: str
) -> None:
    lines = iter(["step\n"] * 20)

    def speak_for_a_while() -> bool:
        with (tmp_path / name).open("a") as log:
            log.write(next(lines, ""))
        return False

    watched = watch(spec(tmp_path, no_progress_timeout_s=0.3), speak_for_a_while, threading.Event())
    assert watched.termination is Termination.NO_PROGRESS
    # Twenty polls of at least 20 ms with growth, then the silence.
    assert watched.elapsed_s >= 20 * 0.02 + 0.3 - 0.1
    assert next(lines, None) is None


@pytest.mark.parametrize("limit", ["timeout_s", "no_progress_timeout_s"])
def test_time_in_which_the_job_was_suspended_counts_toward_no_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    now, polls = [0.0], [0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    class Suspended(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            polls[0] += 1
            now[0] += (timeout or 0.0) + (3600.0 if polls[0] == 3 else 0.0)
            return False

    watched = watch(spec(tmp_path, **{limit: 20.0}), lambda: now[0] > 3615, Suspended())
    assert watched.termination is Termination.EXITED
    watched = watch(spec(tmp_path, **{limit: 20.0}), lambda: False, Suspended())
    assert watched.termination in (Termination.TIMEOUT, Termination.NO_PROGRESS)


def test_without_a_no_progress_timeout_silence_is_fine(tmp_path: Path) -> None:
    assert (
        watch(spec(tmp_path, timeout_s=0.3), lambda: False, threading.Event()).termination
        is Termination.TIMEOUT
    )


@pytest.mark.parametrize(("most", "told"), [(3, 3), (None, 5)])
def test_a_stop_rule_is_told_of_as_many_steps_as_are_asked_for(
    tmp_path: Path, most: int | None, told: int
) -> None:
    lines = (f'MESHTUNE_STEP {{"step": {step}}}\n' for step in range(1, 6))
    (tmp_path / "stdout.log").write_text("".join(lines))
    heard: list[int] = []
    polls = iter([False, True])
    watch(
        spec(tmp_path, max_steps=most),
        lambda: next(polls),
        threading.Event(),
        lambda steps: heard.append(len(steps)),
    )
    assert heard == [told]
