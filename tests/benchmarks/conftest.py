"""The benchmarks are no part of the distribution: they are found beside the tests."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.cost.jobs import jobs
from analysis.cost.model import CostModel
from analysis.cost.profiles import PROFILES
from analysis.sweeps.machines import machine_of

sys.path.insert(0, str(Path(__file__).parents[2]))

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


@pytest.fixture
def truth(tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder with a sweep of these layers and nodes, and with a file that is none."""

    def write(*landscapes: tuple[int, int]) -> Path:
        folder = tmp_path / "truth"
        folder.mkdir()
        every = [row for layers, nodes in landscapes for row in rows(layers, nodes)]
        (folder / "sweep.csv").write_text("\n".join(["# made by a test", COLUMNS, *every]) + "\n")
        (folder / "notes.csv").write_text("a,b\n1,2\n")
        return folder

    return write
