"""Scaling and energy on Frontier, of layouts that the test writes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.cost_model.dash_scaling import TABLE, Frontier, main

ROWS = """model,layers,hidden,heads,seq,n_gcd,tp,pp,mbs,gbs,zero,tflops_per_gcd,pct_peak
22B,48,6144,48,2048,,,,,,1,73.5,38.38
175B,96,12288,96,2048,64,4,16,1,640,1,69.2,36.14
1T,128,25600,128,2048,1024,8,64,1,1600,1,61.2,31.96
"""


def test_a_layout_that_stays_scales_by_its_bubble_and_a_larger_replica_costs_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / TABLE).write_text(ROWS)
    monkeypatch.setattr(sys, "argv", ["dash_scaling", "--truth", str(tmp_path)])
    assert main() == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    strong = {(row[0], row[3]): float(row[6].split()[0]) for row in rows if " to " in "".join(row)}
    for model, changes in (("175B", ("tp 8", "pp 32", "tp 8, pp 32")), ("1T", ("tp 16", "pp 128"))):
        stays = strong[model, "nothing"]
        assert all(strong[model, changed] < stays - 2 for changed in changes)
    # (p - 1) / m of the two sizes, as 1F1B has it; the reduction of gradients costs the rest.
    assert strong["1T", "nothing"] == pytest.approx(
        100 * (1 + 63 / 8016) / (1 + 63 * 6 / 8016), abs=1
    )
    weak = [float(row[5].split()[0]) for row in rows if len(row) == 7 and row[0] == "1T"]
    assert weak == pytest.approx([100] * 3, abs=0.5)
    with pytest.raises(ValueError, match="1T: 8000 sequences cannot be dealt out on 3072 GPUs"):
        Frontier(tmp_path).predict("1T", 3072, 8000)
