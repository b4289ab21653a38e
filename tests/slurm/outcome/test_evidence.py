"""What a trial left is read with distrust: half-written, foreign and old results do not count."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from slurm.logs.patterns import LogFormat, Pattern
from slurm.outcome.classify import classify, read_result
from slurm.outcome.evidence import Evidence, clear_attempt, gather
from slurm.outcome.kinds import Kind
from slurm.outcome.watch import Termination, Watched
from slurm.trial import Lease, ResultSource, TrialSpec

OK = {"status": "ok", "tflops_per_gpu": 60.0}


def left(folder: Path, exit_code: int, patterns: Mapping[str, str] | None = None) -> Evidence:
    log = LogFormat({key: [Pattern(regex)] for key, regex in (patterns or {}).items()})
    spec = TrialSpec("t-1", folder, ("x",), 1, 1, 60.0, result=ResultSource(log))
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
    assert words in outcome.message


def test_an_earlier_attempts_result_cannot_pass_for_this_ones(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(OK))
    (tmp_path / "stdout.log").write_text('MESHTUNE_RESULT {"x": 1}\n')
    (tmp_path / "config.json").write_text("{}")
    clear_attempt(tmp_path)
    assert left(tmp_path, 0).result is None
    assert (tmp_path / "config.json").exists()


def test_after_a_killed_driver_only_the_trainers_own_final_words_count(tmp_path: Path) -> None:
    (tmp_path / "stdout.log").write_text("speed: 1\n")
    assert read_result(tmp_path) is None
    # Ranks that are killed one after the other report errors of their peers.
    (tmp_path / "result.json").write_text('{"status": "error", "message": "connection reset"}')
    assert read_result(tmp_path) is None
    (tmp_path / "result.json").write_text('{"status": "oom", "where": "backward"}')
    outcome = read_result(tmp_path)
    assert outcome
    assert outcome.kind is Kind.OOM
    (tmp_path / "result.json").write_text(json.dumps(OK))
    outcome = read_result(tmp_path)
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
    spec = TrialSpec("t-1", tmp_path, ("x",), 1, 1, 60.0, result=ResultSource(warmup_steps=1))
    watched = Watched(Termination.EXITED, 1.0)
    result = gather(spec, Lease("t-1", ("n1",)), watched, 0).result
    assert result == {
        "status": "ok",
        "step_time_s": {"median": 2.0, "all": [1.0, 3.0, 2.0]},
        "peak_memory_bytes": 4,
        "loss": -1,
    }
