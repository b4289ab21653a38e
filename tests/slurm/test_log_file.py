"""Logs on a file system that is full: written later, or said to be lost."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm import log_file
from slurm.channel import Channel
from slurm.log_file import LogFile
from slurm.trial import Lease, TrialSpec
from support.small_disk import SmallDisk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as mounted:
        yield mounted


def test_what_a_full_disk_does_not_take_is_written_when_there_is_room(disk: SmallDisk) -> None:
    path = disk.path / "stdout.log"
    log = LogFile(path)
    disk.fill()
    lines = [b"%d\n" % i for i in range(3000)]
    for line in lines:
        log.write(line)
    assert log.problem == "stdout.log: No space left on device"
    disk.free()
    log.close()
    assert path.read_bytes() == b"".join(lines)
    assert not log.problem


def test_a_log_that_is_removed_or_moved_away_goes_on_in_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "trial" / "stdout.log"
    path.parent.mkdir()
    log = LogFile(path)
    log.write(b"one\n")
    path.rename(path.with_name("mine.log"))
    log.write(b"two\n")
    assert (path.with_name("mine.log").read_bytes(), path.read_bytes()) == (b"one\n", b"two\n")
    path.unlink()
    log.write(b"three\n")
    assert path.read_bytes() == b"three\n"
    shutil.rmtree(path.parent)
    log.write(b"four\n")
    log.close()
    assert not log.problem and not path.parent.exists()


def test_of_more_than_it_may_hold_the_oldest_lines_are_lost_and_it_says_so(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "MAX_WAITING", 10_000)
    path = disk.path / "stdout.log"
    log = LogFile(path)
    disk.fill()
    for i in range(10_000):
        log.write(b"line %d\n" % i)
    disk.free()
    log.close()
    lines = path.read_text().splitlines()
    assert lines[-1] == "line 9999"
    assert any(re.fullmatch(r"meshtune: \d+ bytes are lost: No space left .*", x) for x in lines)
    assert log.problem
    assert len(path.read_bytes()) < 4096 + 2 * 10_000


def test_ranks_are_read_on_while_their_log_cannot_be_written(disk: SmallDisk) -> None:
    """They would wait for ever on a full pipe."""
    channel = Channel([0], 1, lambda order: None)
    channel.begin(TrialSpec("t", disk.path, ("x",), 1, 1, 600.0), Lease("t", ("n",)))
    disk.fill()
    for i in range(50_000):
        channel.feed(b"0 out %d\\n\n" % i)
    disk.free()
    assert channel.finish() == ""
    said = (disk.path / "stdout.log").read_bytes()
    assert said == b"".join(b"%d\n" % i for i in range(50_000))
