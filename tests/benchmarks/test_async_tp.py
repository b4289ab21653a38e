"""Gains of asynchronous tensor parallelism beside published ones."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cost_model.async_tp import COLUMNS, TABLE, main

ROW = "Llama3.1-8B,8192,64,8,8,12,per-op selective"


def test_each_pair_in_a_priced_format_has_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["# made by a test", f"{','.join(COLUMNS)},technique,tokens_per_s_gpu"]
    for precision, speeds in (("bf16", (4000, 4400)), ("float8 rowwise", (3000, 3100))):
        for technique, speed in zip(("vanilla TP", "async TP"), speeds, strict=True):
            lines.append(f"{ROW},{precision},{technique},{speed}")
    (tmp_path / TABLE).write_text("\n".join(lines) + "\n")
    assert main(["--truth", str(tmp_path)]) == 0
    (told,) = (line for line in capsys.readouterr().out.splitlines() if "Llama" in line)
    *_, speeds, published, gain, theirs = (cell.strip() for cell in told.split("|")[:-1])
    plain, fused = (float(speed.replace(",", "")) for speed in speeds.split(", "))
    assert (published, theirs) == ("4,000, 4,400", "10.0 %")
    assert float(gain[:-2]) == pytest.approx(100 * (fused / plain - 1), abs=0.1)
    assert fused > plain > 1000


def test_without_the_table_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--truth", str(tmp_path)])
    assert TABLE in capsys.readouterr().err


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_torchs_compiler_fuses_forward_every_exchange_and_backward_gathers_only() -> None:
    """What the built-in trainer fuses, and what selective recomputation gathers again."""
    argv = [sys.executable, "-W", "ignore", "-m", "benchmarks.trainer.fused_by_torch"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if "ward" in line]
    assert rows == [
        ["none", "forward", "2", "2", "2", "2"],
        ["none", "backward", "2", "2", "2", "0"],
        ["selective", "forward", "2", "2", "2", "2"],
        ["selective", "backward", "4", "3", "4", "0"],
    ]
