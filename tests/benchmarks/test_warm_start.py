"""The benchmark of warm starts, on sweeps that the tests write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.cost.jobs import jobs
from analysis.cost.model import CostModel
from analysis.cost.profiles import PROFILES
from analysis.sweeps.machines import machine_of
from benchmarks.warm_start import MODEL, NODES, Compared, lines, main, pairs, sweeps

COLUMNS = (
    "model,layers,hidden,heads,kv_heads,ffn,gated,tied_emb,vocab,seq,gpu,n_nodes,n_gpu,dp,tp,pp,"
    "mbs,gas,gbs,zero_stage,tok_s,peak_mem_GB,crashed_or_oom"
)


def rows(layers: int, nodes: int, batch: int = 64) -> list[str]:
    """Every (tp, pp, mbs) of a model, by the cost model with other constants."""
    found = [
        (8 * nodes // tp // pp, tp, pp, mbs, batch * tp * pp // (8 * nodes * mbs))
        for tp in (1, 2, 4, 8) for pp in (1, 2, 4) for mbs in (1, 2, 4)
        if 8 * nodes >= tp * pp and batch * tp * pp % (8 * nodes * mbs) == 0
    ]  # fmt: skip
    dp, tp, pp, mbs, gas = np.array(found, dtype=float).T
    told = jobs(
        {
            "num_layers": layers, "hidden_size": 4096, "num_heads": 32, "kv_heads": 8,
            "ffn_size": 14336, "gated": True, "tied_embeddings": False, "vocab_size": 128256,
            "seq_length": 4096, "dp": dp, "tp": tp, "pp": pp, "mbs": mbs, "gas": gas,
            "zero_stage": 1, "sequence_parallel": tp > 1, "recompute": 0.0,
        }
    )  # fmt: skip
    model = CostModel(machine_of("H100-80GB", 8), PROFILES["nanotron"])
    model = replace(model, constants=replace(model.constants, gemm_share=0.6, host_call_s=1e-3))
    answer = model.predict(told)
    lines = []
    for i, (d, t, p, m, g) in enumerate(found):
        ran = answer.peak_bytes[i] <= model.memory_limit_bytes
        end = f"{answer.tokens_per_second[i]:.6g},{answer.peak_bytes[i] / 2**30:.4g},0"
        lines.append(
            f"m{layers},{layers},4096,32,8,14336,1,0,128256,4096,H100-80GB,{nodes},{8 * nodes},"
            f"{d},{t},{p},{m},{g},{batch},1,{end if ran else ',,1'}"
        )
    return lines


def sweep(folder: Path, *landscapes: tuple[int, int]) -> Path:
    """A folder with a sweep of these layers and nodes, and with a file that is none."""
    every = [row for layers, nodes in landscapes for row in rows(layers, nodes)]
    (folder / "sweep.csv").write_text("\n".join(["# made by a test", COLUMNS, *every]) + "\n")
    (folder / "notes.csv").write_text("a,b\n1,2\n")
    return folder


def test_a_landscape_is_paired_with_its_nearest_in_one_respect(tmp_path: Path) -> None:
    found: dict[tuple[str, int, str], list[tuple[str, int]]] = {}
    for pair in pairs([*sweeps(sweep(tmp_path, (16, 1), (16, 2), (16, 4), (24, 2)))]):
        at = (pair.target.model.split("x")[0], pair.target.nodes, pair.differs)
        found.setdefault(at, []).append((pair.source.model.split("x")[0], pair.source.nodes))
    assert found == {
        ("16", 1, NODES): [("16", 2)],
        ("16", 2, NODES): [("16", 1), ("16", 4)],
        ("16", 4, NODES): [("16", 2)],
        ("16", 1, MODEL): [("24", 2)],
        ("16", 2, MODEL): [("24", 2)],
        ("16", 4, MODEL): [("24", 2)],
        ("24", 2, MODEL): [("16", 2)],
    }


def test_the_rows_have_the_differences_of_each_kind_and_of_all() -> None:
    def compared(differs: str, cold: int, warm: int) -> Compared:
        return Compared(differs, "t", "s", 0, cold, warm, 0.25, 0.0)

    some = [compared(NODES, 4, 1), compared(NODES, 1, 4), compared(MODEL, 2, 9)]
    _, _, *found = lines(some)
    assert found[0].startswith(f"| {NODES} | 2 | 2.00 / 4 | 2.00 / 4 | +0 | +0.00 | +3 |")
    assert found[1].startswith(f"| {MODEL} | 1 | 2.00 / 2 | 9.00 / 9 | +7 | +7.00 | +7 |")
    assert found[2].startswith("| all | 3 |") and found[2].endswith("| 25.0 % | 0.0 % |")


def test_every_pair_is_searched_cold_and_warm_and_written_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    truth = sweep(tmp_path, (16, 1), (16, 2), (24, 2))
    assert main(["--truth", str(truth), "--json", str(out)]) == 0
    said = capsys.readouterr().out
    assert "Python" in said.splitlines()[0] and "| all | 5 |" in said
    written = json.loads(out.read_text())
    assert len(written) == 5
    for one in written:
        assert one["target"] != one["source"]
        assert 1 <= one["cold_trials"] <= 37 and 1 <= one["warm_trials"] <= 37
    # The source is of the same truth, and the constants know nothing of it otherwise.
    assert sum(one["warm_trials"] - one["cold_trials"] for one in written) <= 0


def test_a_folder_without_sweeps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--truth", str(tmp_path)])
    assert raised.value.code == 2
