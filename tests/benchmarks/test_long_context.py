"""Predictions of context parallelism beside a published series."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cost_model.long_context import COLUMNS, SERIES, TABLE, main

ROWS = {"n_gpu": (4, 128), "tp": (1, 4), "pp": (1, 1), "cp": (1, 4), "dp": (4, 8), "mbs": (1, 1),
        "gas": (256, 4), "seq": (4096, 131072), "tokens_per_s_gpu": (10000, 2000)}  # fmt: skip


def write(folder: Path, columns: tuple[str, ...]) -> None:
    lines = ["# made by a test", f"container,{','.join(columns)}"]
    for number, series in ((1, SERIES), (0, SERIES), (0, "another")):
        lines.append(f"{series},{','.join(str(ROWS[name][number]) for name in columns)}")
    (folder / TABLE).write_text("\n".join(lines) + "\n")


def test_each_length_of_the_series_is_priced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, COLUMNS)
    assert main(["--truth", str(tmp_path)]) == 0
    table = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if "|" in line]
    assert [row[0].strip() for row in table[2:]] == ["4,096", "131,072"]
    for row in table[2:]:
        predicted, published, ratio, shipped = (float(cell.replace(",", "")) for cell in row[4:])
        assert ratio == pytest.approx(predicted / published, abs=0.01)
        assert shipped > ratio, "later kernels are faster"
    assert float(table[2][4].replace(",", "")) > 2 * float(table[3][4].replace(",", ""))


def test_a_table_without_a_column_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, tuple(name for name in COLUMNS if name != "cp"))
    with pytest.raises(SystemExit):
        main(["--truth", str(tmp_path)])
    assert "no column cp" in capsys.readouterr().err
