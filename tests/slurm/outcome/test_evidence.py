"""What a trial left is read with distrust: half-written, foreign and old results do not count."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from slurm.logs.patterns import LogFormat, Pattern
from slurm.outcome.classify import Outcome, classify
from slurm.outcome.evidence import Evidence, clear_attempt, gather
from slurm.outcome.kinds import Kind
from slurm.outcome.result import KEPT_BYTES, kept_result
from slurm.outcome.watch import Termination, Watched
from slurm.trial import Lease, TrialSpec

OK = {"status": "ok", "tflops_per_gpu": 60.0}


def left(
    folder: Path,
    exit_code: int,
    patterns: Mapping[str, str] | None = None,
    total_steps: int | None = None,
) -> Evidence:
    log = LogFormat({key: [Pattern(regex)] for key, regex in (patterns or {}).items()})
    spec = TrialSpec("t-1", folder, ("x",), 1, 1, 60.0, log=log, total_steps=total_steps)
    return gather(spec, Lease("t", ("n1",)), Watched(Termination.EXITED, 1.0), exit_code)


def test_a_complete_result_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(OK))
    assert left(tmp_path, 0).result == OK


@pytest.mark.parametrize("text", ["", '{"status": "ok", "tflo', "[]", "\x00", '{"status": "fine"}'])
def test_a_broken_result_file_is_no_result(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    outcome = classify(left(tmp_path, 0))
    assert outcome.kind is Kind.CRASH
    assert "result.json" in outcome.message


def test_a_result_of_bytes_that_are_no_text_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(b"\xff\xfe\x00{")
    assert classify(left(tmp_path, 0)).kind is Kind.CRASH


def test_the_last_result_line_counts_and_figures_without_a_status_are_ok(tmp_path: Path) -> None:
    lines = ['MESHTUNE_RESULT {"x": 1}', "noise", 'INFO: MESHTUNE_RESULT {"x": 2}', "bye"]
    (tmp_path / "stdout.log").write_text("\n".join(lines))
    outcome = classify(left(tmp_path, 0))
    assert (outcome.kind, outcome.result) == (Kind.OK, {"x": 2})


@pytest.mark.parametrize(
    "line", ["step {n}: 5 TFLOPS\n", 'MESHTUNE_STEP {{"step": {n}, "x": 5}}\n']
)
@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        (range(1, 4), Kind.OK),
        (range(1, 3), Kind.CRASH),
        (range(1, 5), Kind.CRASH),
        ((1, 3), Kind.OK),  # not every step has a line
    ],
)
def test_a_fault_after_the_last_step_costs_no_result(
    tmp_path: Path, line: str, numbers: Sequence[int], kind: Kind
) -> None:
    (tmp_path / "stdout.log").write_text("".join(line.format(n=n) for n in numbers))
    patterns = {"x": r"step (?P<step>\d+): (?P<value>\d+) TFLOPS"} if "TFLOPS" in line else None
    outcome = classify(left(tmp_path, -6, patterns, total_steps=3))
    assert outcome.kind is kind and outcome.result is not None and outcome.result["x"] == 5


def test_a_fault_after_a_stated_result_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(OK))
    outcome = classify(left(tmp_path, 134))
    assert (outcome.kind, outcome.result) == (Kind.OK, OK)


def test_a_pattern_takes_the_median_of_its_matches_in_either_log(tmp_path: Path) -> None:
    (tmp_path / "stdout.log").write_text(
        "step 1: 10.0 TFLOPS\nstep 2: 1,012.5 TFLOPS\nstep 3: 1,014.5 TFLOPS\n"
    )
    (tmp_path / "stderr.log").write_text("mem 7e9\n")
    seen = left(tmp_path, 0, {"tflops": r"([\d.,]+) TFLOPS", "memory": r"^mem (\S+)$"})
    assert seen.result == {"tflops": 1012.5, "memory": 7e9}
    assert classify(seen).kind is Kind.OK


@pytest.mark.parametrize(("text", "words"), [("", "no pattern"), ("x: many", "'many'")])
def test_a_pattern_that_finds_no_number_is_a_crash_that_says_so(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "stdout.log").write_text(text)
    outcome = classify(left(tmp_path, 0, {"x": r"x: (\w+)"}))
    assert outcome.kind is Kind.CRASH
    assert words in outcome.message[:100]  # of which a terminal shows the beginning


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_text('{"x": ' + "[" * 700 + "]" * 700 + "}"), "deeper than 64"),
        (lambda path: path.mkdir(), "found a directory"),
        (os.mkfifo, "found a pipe"),
        (lambda path: path.symlink_to("/dev/zero"), "found a device"),
        (lambda path: path.open("w").truncate(1 << 40), "larger than"),
        (lambda path: path.symlink_to("/proc/self/environ"), "not JSON"),
        (lambda path: path.write_text('{"x": 1' + "0" * 5000 + "}"), "not JSON"),
    ],
    ids=["deep", "directory", "pipe", "device", "sparse", "proc", "digits"],
)
def test_what_is_no_result_ends_its_trial_as_a_crash(
    tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    make(tmp_path / "result.json")
    outcome = classify(left(tmp_path, 0))
    assert (outcome.kind, outcome.result) == (Kind.CRASH, None)
    assert "result.json" in outcome.message and words in outcome.message
    assert Outcome.stated(tmp_path) is None


@pytest.mark.parametrize("name", ["stdout.log", "stderr.log"])
@pytest.mark.parametrize("kind", ["directory", "pipe", "device", "link", "sparse"])
def test_what_is_no_log_hides_no_result(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "link":
        (tmp_path / "own").write_text('secret\nCUDA out of memory\nMESHTUNE_RESULT {"x": 1}\n')
        path.symlink_to("own")
    else:
        with path.open("w") as file:
            file.truncate(1 << 40)
    outcome = classify(left(tmp_path, 1))
    assert outcome.kind is Kind.CRASH and "secret" not in outcome.stderr_tail
    assert Outcome.stated(tmp_path) is None
    (tmp_path / "result.json").write_text(json.dumps(OK))
    assert classify(left(tmp_path, 0)).kind is Kind.OK
    outcome = Outcome.stated(tmp_path) or outcome
    assert outcome.kind is Kind.OK


def test_numbers_that_no_machine_holds_are_floats(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(
        '{"a": 1%s, "b": [-1%s, 7], "c": true}' % (2 * ("0" * 400,))
    )
    assert left(tmp_path, 0).result == {"a": math.inf, "b": [-math.inf, 7], "c": True}


def test_an_earlier_attempts_result_cannot_pass_for_this_ones(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(OK))
    (tmp_path / "stdout.log").write_text('MESHTUNE_RESULT {"x": 1}\n')
    (tmp_path / "config.json").write_text("{}")
    clear_attempt(tmp_path)
    assert left(tmp_path, 0).result is None
    assert (tmp_path / "config.json").exists()


def test_whatever_is_in_the_place_of_a_trials_files_gives_way(tmp_path: Path) -> None:
    """It is moved aside if it may be worth something; nothing of it is read, or written through."""
    trial, elsewhere = tmp_path / "0001", tmp_path / "elsewhere"
    elsewhere.write_text("untouched")
    (trial / "result.json").mkdir(parents=True)
    (trial / "result.json" / "weights").write_text("w")
    (trial / "result.json.aside-1").write_text("of an earlier time")
    (trial / "stderr.log").mkdir()
    os.mkfifo(trial / "stdout.log")
    os.mkfifo(trial / "command.txt")
    (trial / "config.json").symlink_to(elsewhere)
    (trial / "trial.json").mkdir()
    clear_attempt(trial)
    names = ["result.json.aside-1", "result.json.aside-2", "stderr.log.aside-1"]
    assert sorted(p.name for p in trial.iterdir()) == [*names, "trial.json.aside-1"]
    assert (trial / "result.json.aside-2" / "weights").read_text() == "w"
    assert elsewhere.read_text() == "untouched"
    clear_attempt(elsewhere)
    assert elsewhere.is_dir() and (tmp_path / "elsewhere.aside-1").read_text() == "untouched"
    (trial / "linked").symlink_to(trial / "result.json.aside-2")
    clear_attempt(trial / "linked")
    assert not list((trial / "linked").iterdir())
    assert (trial / "result.json.aside-2" / "weights").read_text() == "w"
    trial.joinpath("gone").symlink_to("gone")
    clear_attempt(trial / "gone")
    assert (trial / "gone").is_dir()


def test_of_a_large_result_the_journal_keeps_the_numbers(tmp_path: Path) -> None:
    large = {
        "status": "ok",
        "speed": 5.0,
        "step_time_s": {"median": 0.5, "all": [0.5] * 100_000},
        "trace": [{"name": "x" * 100}] * 2000,
        "text": "y" * 5_000_000,
        "k" * 5000: 1,
    }
    kept = kept_result(large)
    assert len(json.dumps(kept)) < KEPT_BYTES + 2000
    assert (kept["speed"], kept["step_time_s"]["median"]) == (5.0, 0.5)
    assert kept["step_time_s"]["all"] == [0.5] * 1000
    assert "step_time_s.all: 99,000 of 100,000 items" in kept["left_out"]
    assert "trace" not in kept and "trace" in kept["left_out"]
    assert kept["text"] == "y" * 1000
    assert kept_result(OK) == OK
    many = kept_result({str(i): {str(j): j for j in range(30)} for i in range(5000)})
    assert len(json.dumps(many)) < KEPT_BYTES + 2000


def test_after_a_killed_driver_only_the_trainers_own_final_words_count(tmp_path: Path) -> None:
    (tmp_path / "stdout.log").write_text("speed: 1\n")
    assert Outcome.stated(tmp_path) is None
    # Ranks that are killed one after the other report errors of their peers.
    (tmp_path / "result.json").write_text('{"status": "error", "message": "connection reset"}')
    assert Outcome.stated(tmp_path) is None
    (tmp_path / "result.json").write_text('{"status": "oom", "where": "backward"}')
    outcome = Outcome.stated(tmp_path)
    assert outcome
    assert outcome.kind is Kind.OOM
    (tmp_path / "result.json").write_text(json.dumps(OK))
    outcome = Outcome.stated(tmp_path)
    assert outcome
    assert (outcome.kind, outcome.result) == (Kind.OK, OK)


def test_lines_of_steps_alone_are_a_result(tmp_path: Path) -> None:
    """Its medians after the warm-up; every rank may have printed them."""
    steps = [
        {"step": n, "step_time_s": t, "peak_memory_bytes": n, "loss": 3 - n}
        for n, t in enumerate((9.0, 1.0, 3.0, 2.0), start=1)
    ]
    lines = [f"MESHTUNE_STEP {json.dumps(step)}\n" for step in steps for _ in range(2)]
    (tmp_path / "stdout.log").write_text("hello\n" + "".join(lines))
    spec = TrialSpec("t-1", tmp_path, ("x",), 1, 1, 60.0, warmup_steps=1)
    watched = Watched(Termination.EXITED, 1.0)
    result = gather(spec, Lease("t-1", ("n1",)), watched, 0).result
    assert result == {
        "status": "ok",
        "step_time_s": {"median": 2.0, "all": [1.0, 3.0, 2.0]},
        "peak_memory_bytes": 4,
        "loss": -1,
    }


@pytest.mark.parametrize("steps", [0, 2])
def test_of_a_trial_that_timed_out_it_is_known_how_many_steps_it_made(
    tmp_path: Path, steps: int
) -> None:
    lines = [f'MESHTUNE_STEP {{"step": {n}}}\n' for n in range(1, steps + 1)]
    (tmp_path / "stdout.log").write_text("starting\n" + "".join(lines))
    spec = TrialSpec("t-1", tmp_path, ("x",), 1, 1, 60.0)
    watched = Watched(Termination.TIMEOUT, 60.0)
    outcome = classify(gather(spec, Lease("t-1", ("n1",)), watched, None))
    assert (outcome.kind, outcome.steps) == (Kind.TIMEOUT, steps)
