"""Tagged pieces of many ranks' output become whole lines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm.mpiexec.dialects import MPICH, OPEN_MPI_4, OPEN_MPI_5, Dialect
from slurm.mpiexec.output import LineMerger, OutputPump

TORN = (
    b"[1,0]<stdout>:loss 3[1,1]<stdout>:loss 4.5\n[1,1]<stdout>:ste"
    b"[1,0]<stdout>:.25\n[1,1]<stdout>:p 2\n"
)


def test_torn_lines_are_put_together_by_rank_in_the_order_in_which_they_end() -> None:
    assert LineMerger(OPEN_MPI_4.tag).feed(TORN) == b"loss 4.5\nloss 3.25\nstep 2\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20])
def test_it_does_not_matter_how_much_is_read_at_once(size: int) -> None:
    merger = LineMerger(OPEN_MPI_4.tag)
    parts = [merger.feed(TORN[i : i + size]) for i in range(0, len(TORN), size)]
    assert b"".join(parts) + merger.end() == b"loss 4.5\nloss 3.25\nstep 2\n"


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        (OPEN_MPI_4, b"[1,12]<stderr>: two spaces\n"),
        (OPEN_MPI_5, b"[1,12]<stderr>:  two spaces\n"),
        (MPICH, b"[meshtune-12] two spaces\n"),
    ],
    ids=["Open MPI 4", "Open MPI 5", "MPICH"],
)
def test_every_dialects_tag_comes_off_and_nothing_else(dialect: Dialect, text: bytes) -> None:
    assert LineMerger(dialect.tag).feed(text) == b" two spaces\n"


def test_mpiexecs_own_words_are_kept_apart_from_a_rank_that_is_within_a_line() -> None:
    merger = LineMerger(OPEN_MPI_4.tag)
    lines = merger.feed(b"[1,0]<stderr>:a\n[1,1]<stderr>:b") + merger.feed(b"[1,0]<stderr>:c\n")
    lines += merger.feed(b"ORTE has lost communication\n")
    assert lines == b"a\nc\nORTE has lost communication\n"
    assert merger.end() == b"b\n"


def test_a_progress_bar_shows_before_its_line_ends() -> None:
    merger = LineMerger(OPEN_MPI_4.tag)
    assert merger.feed(b"[1,0]<stderr>:10%\r20%") == b"10%\r"
    assert merger.feed(b"[1,1]<stderr>:x\n") == b"x\n"
    assert merger.feed(b"[1,0]<stderr>: done\n") == b"20% done\n"


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    merger = LineMerger(OPEN_MPI_4.tag)
    written = b"".join(merger.feed(b"x" * 100_000) for _ in range(50)) + merger.end()
    assert written.count(b"x") == 5_000_000
    assert merger.feed(b"[1,0]<stdout>:whole\n") == b"whole\n"


def test_the_pump_does_not_wait_for_whoever_else_holds_the_pipe(tmp_path: Path) -> None:
    source, held = os.pipe()
    log = tmp_path / "stdout.log"
    pump = OutputPump({source: log}, OPEN_MPI_4.tag)
    os.write(held, b"[1,0]<stdout>:the last words")
    pump.finish(timeout_s=0.0)
    assert log.read_text() == "the last words\n"
    os.close(held)
