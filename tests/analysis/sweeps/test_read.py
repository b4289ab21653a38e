"""Tables of measured runs are recognised by their columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.cost.jobs import FULL, SELECTIVE
from analysis.sweeps.read import read_tables
from analysis.sweeps.record import TableError
from support.sweep_rows import SWEEP, changed, failed_row, read_sweep, row, sweep


def test_a_sweep_is_read_by_its_columns(tmp_path: Path) -> None:
    table = read_sweep(tmp_path, [row(), failed_row(mbs=2, gas=2)])
    assert table.form == "sweep" and list(table.framework) == ["nanotron"] * 2
    assert table.step_time_s[0] == pytest.approx(32 * 4096 / 1000)
    assert table.peak_bytes[0] == 10 * 2**30
    assert np.isnan(table.step_time_s[1]) and list(table.failed) == [False, True]
    assert table.clusters["dgx_h100"].memory_gib == 80


def test_optional_columns_of_a_sweep_are_read(tmp_path: Path) -> None:
    columns = SWEEP + ",recompute,sequence_parallel,framework"
    options = [",full,0,Megatron-LM", ",selective,1,", ",,,In house"]
    rows = [row(4, 2) + option for option in options]
    (table,) = read_tables(sweep(tmp_path / "a.csv", rows, columns))
    assert list(table.jobs.recompute) == [FULL, SELECTIVE, 0]
    assert list(table.jobs.sequence_parallel) == [False, True, True]
    assert list(table.framework) == ["megatron-lm", "nanotron", "in-house"]


def test_flags_are_words_or_digits(tmp_path: Path) -> None:
    path = sweep(tmp_path / "a.csv", [changed(gated="true", crashed_or_oom="False")])
    (table,) = read_tables(path)
    assert table.jobs.gated.all() and not table.failed.any()


def test_a_row_that_contradicts_itself_is_left_out(tmp_path: Path) -> None:
    wrong = row().replace(",32,1,1000", ",33,1,1000")
    table = read_sweep(tmp_path, [row(), wrong])
    assert len(table) == 1
    assert dict(table.left_out) == {"mbs * gas * dp is not the global batch": 1}


def test_columns_of_no_known_form_are_named_with_those_that_lack(tmp_path: Path) -> None:
    path = sweep(tmp_path / "h100_nanotron_sweep.csv", ["1,2"], "a,b")
    with pytest.raises(TableError, match=r"no known form .* columns a, b, .* lacks .*tok_s"):
        read_tables(path)
