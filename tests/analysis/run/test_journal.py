from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from analysis.run.events import Closed, Ended, Opened, Proposed, Started
from analysis.run.fold import Run, extend, read_run
from analysis.run.journal import Journal
from analysis.run.lines import FIRST, Lines, RunError, sealed
from analysis.run.lock import RunBusyError, driver_of
from workflows.search.budget import Budget, node_hours, wall_time_s


class Clock:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def opened(journal: Journal) -> None:
    journal.write(
        Opened(
            space="s",
            fingerprint="f",
            seed=1,
            launcher="local",
            nodes=["a"],
            objective={"maximize": "speed"},
        )
    )


def end(journal: Journal, trial: int, kind: str, final: bool = True, attempt: int = 1) -> None:
    journal.write(
        Ended(
            trial=trial,
            attempt=attempt,
            kind=kind,
            objective=1.0 if kind == "ok" else None,
            result={},
            message="",
            nodes=["a"],
            final=final,
        )
    )


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    opened(journal)
    journal.write(Proposed(trial=1, config={"tp": 2}, by="random", why=""))
    journal.write(Started(trial=1, attempt=1, name="r-1", nodes=["a", "b"]))
    end(journal, 1, "ok")
    journal.close()
    run = read_run(tmp_path)
    assert run.trials[1].config == {"tp": 2}
    assert run.trials[1].ok
    assert run.best is run.trials[1]
    assert run.trials[1].attempts[0].nodes == ("a", "b")


@settings(max_examples=25)
@given(cut=st.integers(min_value=1, max_value=60))
def test_a_torn_last_line_is_cut_and_the_journal_goes_on(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("run")
    journal = Journal(path)
    opened(journal)
    journal.write(Proposed(trial=1, config={"tp": 2}, by="random", why=""))
    journal.close()
    file = path / "journal.jsonl"
    whole = file.read_bytes()
    torn = whole[: -min(cut, len(whole) - whole.index(b"\n") - 2)]
    file.write_bytes(torn)
    assert len(list(Lines(file))) == 1
    journal = Journal(path)
    journal.write(Proposed(trial=1, config={"tp": 4}, by="random", why=""))
    journal.close()
    assert read_run(path).trials[1].config == {"tp": 4}


def test_a_damaged_line_is_an_error_that_names_it(tmp_path: Path) -> None:
    line, _ = sealed({"v": 2, "t": 0, "event": "closed", "reason": ""}, FIRST)
    (tmp_path / "journal.jsonl").write_bytes(line + b"garbage\n")
    with pytest.raises(RunError, match=r"journal\.jsonl:2: it is not JSON .*`meshtune repair"):
        read_run(tmp_path)


def test_a_journal_of_a_later_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text('{"v": 99, "t": 0, "event": "x"}\n')
    with pytest.raises(RunError, match="journal version 99"):
        read_run(tmp_path)


def test_nan_never_reaches_the_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(ValueError, match="finite number"):
        journal.write(Proposed(trial=1, config={"x": float("nan")}, by="", why=""))
    journal.close()
    assert (tmp_path / "journal.jsonl").read_bytes() == b""


def test_two_drivers_cannot_hold_one_run(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    opened(journal)
    code = (
        "import sys; from pathlib import Path; from analysis.run.journal import Journal\n"
        "Journal(Path(sys.argv[1]))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=250
    )
    assert other.returncode != 0
    assert "another meshtune" in other.stderr
    assert "pid" in (driver_of(tmp_path) or "")
    # Reading a run, as `meshtune status` in the driver's own process would, keeps the lock.
    read_run(tmp_path)
    with pytest.raises(RunBusyError):
        Journal(tmp_path)
    journal.close()
    assert driver_of(tmp_path) is None
    Journal(tmp_path).close()


@pytest.mark.parametrize("moved", [False, True])
def test_a_driver_ends_when_its_run_is_removed_or_moved(tmp_path: Path, moved: bool) -> None:
    (tmp_path / "run").mkdir()
    journal = Journal(tmp_path / "run")
    try:
        if moved:
            (tmp_path / "run").rename(tmp_path / "elsewhere")
        else:
            shutil.rmtree(tmp_path / "run")
        with pytest.raises(RunError, match="was removed or moved while its search was running"):
            journal.write(Closed(reason="x"))
    finally:
        journal.close()


def test_time_between_sessions_is_not_spent(tmp_path: Path) -> None:
    clock = Clock()
    journal = Journal(tmp_path, clock)
    opened(journal)
    clock.now += 10
    journal.write(Closed(reason="stopped"))
    clock.now += 500
    opened(journal)
    clock.now += 7
    assert wall_time_s(journal.run, clock.now) == 17
    journal.close()


def test_a_clock_that_was_set_back_between_two_sessions_turns_no_time_around(
    tmp_path: Path,
) -> None:
    clock = Clock()
    journal = Journal(tmp_path, clock)
    opened(journal)
    clock.now += 10
    journal.write(Closed(reason="stopped"))
    journal.close()
    clock.now -= 5000
    journal = Journal(tmp_path, clock)
    opened(journal)
    journal.write(Proposed(trial=1, config={}))
    journal.write(Started(trial=1, attempt=1, name="r1", nodes=["a"]))
    clock.now += 7
    end(journal, 1, "ok")
    assert wall_time_s(journal.run, journal.clock()) == pytest.approx(17)
    assert journal.run.trials[1].elapsed_s == pytest.approx(7)
    assert journal.run.opened_t == sorted(journal.run.opened_t)
    journal.close()


def test_node_hours_count_width_retries_and_what_runs_now(tmp_path: Path) -> None:
    clock = Clock()
    journal = Journal(tmp_path, clock)
    opened(journal)
    for attempt, kind in ((1, "node_failure"), (2, None)):
        if attempt == 1:
            journal.write(Proposed(trial=1, config={}, by="", why=""))
        journal.write(Started(trial=1, attempt=attempt, name=f"r{attempt}", nodes=["a", "b"]))
        clock.now += 1800
        if kind:
            end(journal, 1, kind, final=False)
    assert node_hours(journal.run, clock.now) == pytest.approx(2.0)
    journal.close()


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (Budget(), None),
        (Budget(trials=2), "budget: 2 trials"),
        (Budget(trials=3), None),
        (Budget(wall_time_s=9), "budget: 9 s of wall time"),
        (Budget(node_hours=1.0), None),
        (Budget(node_hours=0.001), "budget: 0.001 node-hours"),
    ],
)
def test_a_spent_budget_says_which(tmp_path: Path, budget: Budget, expected: str | None) -> None:
    clock = Clock()
    journal = Journal(tmp_path, clock)
    opened(journal)
    for trial, kind in ((1, "ok"), (2, "oom"), (3, "node_failure")):
        journal.write(Proposed(trial=trial, config={}, by="", why=""))
        journal.write(Started(trial=trial, attempt=1, name=f"r{trial}", nodes=["a"]))
        clock.now += 3
        end(journal, trial, kind)
    spent = budget.spent(journal.run, clock.now)
    assert (spent and spent.reason) == expected
    journal.close()


def test_a_result_that_comes_last_does_not_displace_an_equal_best(tmp_path: Path) -> None:
    lines = []
    for trial in (1, 2):
        lines.append({"event": "proposed", "trial": trial, "config": {}})
        lines.append(
            {"event": "started", "trial": trial, "attempt": 1, "name": "n", "nodes": ["a"]}
        )
        lines.append(
            {
                "event": "ended",
                "trial": trial,
                "attempt": 1,
                "kind": "ok",
                "objective": 5.0,
                "message": "",
                "final": True,
            }
        )
    events = [json.loads(json.dumps({"v": 2, "t": i, **line})) for i, line in enumerate(lines)]
    run = Run(tmp_path)
    extend(run, events)
    best = run.best
    assert best is not None
    assert best.number == 1
