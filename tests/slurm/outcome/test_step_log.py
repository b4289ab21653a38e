"""Steps read from a growing log."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

from slurm.outcome.step_log import StepLog


def line(step: int, **figures: float) -> str:
    return f"MESHTUNE_STEP {json.dumps({'step': step, **figures})}\n"


def test_steps_are_read_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    log = StepLog(path, None)
    assert not log.grew()  # there is no file yet
    path.write_text("starting\n" + line(1, speed=2.0))
    assert log.grew()
    assert not log.grew()
    with path.open("a") as file:
        file.write("MESHTUNE_STEP {" + '"step": 2,')
        file.flush()
        assert not log.grew()  # torn
        file.write(' "speed": 4.0}\nnoise\n' + line(3))
    assert log.grew()
    assert log.steps == [{"step": 1, "speed": 2.0}, {"step": 2, "speed": 4.0}, {"step": 3}]


def test_a_log_that_somebody_has_emptied_is_read_from_its_new_beginning(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_text("starting\n" + line(1) + line(2))
    log = StepLog(path, None)
    assert log.grew()
    path.write_text(line(3))
    assert log.grew()
    assert log.steps == [{"step": 1}, {"step": 2}, {"step": 3}]


def test_a_step_counts_once_though_every_rank_prints_it(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_text("".join(line(i, speed=r) for i in (1, 2) for r in range(4)))
    log = StepLog(path, None)
    assert log.grew()
    assert log.steps == [{"step": 1, "speed": 0}, {"step": 2, "speed": 0}]


def test_what_is_no_step_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    wrong = [
        "{}",
        '{"step": "1"}',
        '{"step": true}',
        "{not json}",
        "[1]",
        '{"step": 0}',
        "{" * 5000,
    ]
    path.write_text("".join(f"MESHTUNE_STEP {text}\n" for text in wrong))
    assert not StepLog(path, None).grew()


def test_output_without_line_ends_is_not_kept(tmp_path: Path) -> None:
    """In the driver, that is, which reads the logs of all running trials."""
    path = tmp_path / "stdout.log"
    with path.open("wb") as file:
        file.truncate(40 << 20)
    log = StepLog(path, None)
    tracemalloc.start()
    try:
        for _ in range(12):
            assert not log.grew()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 30 << 20
    with path.open("a") as file:
        file.write("\n" + line(1))
    assert log.grew()


def test_a_log_that_cannot_be_read_has_no_steps(tmp_path: Path) -> None:
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "another.log").write_text(line(1))
    (tmp_path / "link").symlink_to("another.log")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    grew = {path.name for path in tmp_path.iterdir() if StepLog(path, None).grew()}
    assert grew == {"another.log"}


def test_steps_are_kept_up_to_a_number(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_text("".join(line(i) for i in range(1, 10_100)))
    for most, kept in ((10_000, 10_000), (None, 10_099)):
        log = StepLog(path, most)
        assert log.grew()
        assert len(log.steps) == kept


def test_all_steps_of_a_long_log_are_read_also_a_last_one_without_its_line_end(
    tmp_path: Path,
) -> None:
    between = "x" * 99 + "\n"
    text = line(1) + between * 90_000 + line(2) + between * 90_000 + line(3).rstrip("\n")
    (tmp_path / "stdout.log").write_text(text)
    assert [step["step"] for step in StepLog.reported(tmp_path)] == [1, 2, 3]
