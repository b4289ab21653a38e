"""Whether the rate of a run that splits sequences counts a token once, by what a GPU can do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.published.read import read_table

COLUMNS = (
    "model,layers,hidden,heads,kv_heads,ffn,gated,tied_emb,vocab,seq,gpu,n_nodes,n_gpu,dp,tp,pp,mbs,"
    "gas,gbs,zero_stage,tokens_per_second,peak_mem_GB,out_of_memory,recompute,framework,cp,sp,liger,"
    "head_dim,tok_s_printed"
)
SHAPE = "4b,36,2560,32,8,9728,1,1,151936"


def row(seq: int, dp: int, cp: int, liger: int, printed: float) -> str:
    """A run of 16 GPUs; as in the published table, its rate is divided by ``cp``."""
    layout = f"{seq},H100-80GB,2,16,{dp},1,1,1,1,{dp},3"
    rest = f"40,0,full,fsdp,{cp},1,{liger},128"
    return f"{SHAPE},{layout},{printed / cp},{rest},{printed}"


@pytest.mark.parametrize(("fastest", "counted_often"), [(18_900 * 16, True), (8_000 * 16, False)])
def test_a_campaign_counts_tokens_often_if_its_printed_rates_exceed_a_gpus_peak(
    tmp_path: Path, fastest: float, counted_often: bool
) -> None:
    """71 GFLOP per token at 32k: 18,900 of them a second would be 1.3 PFLOP/s, 8,000 are 0.57."""
    runs = [
        row(16384, 16, 1, 0, 90_000.0),
        row(16384, 8, 2, 0, 150_000.0),
        row(32768, 2, 8, 0, fastest),
        row(16384, 8, 2, 1, 150_000.0),  # another loss: another campaign
    ]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([COLUMNS, *runs]) + "\n")
    table = read_table(path)
    assert table is not None and len(table) == 4
    tokens = table.jobs.global_batch * table.jobs.model.seq_length
    rates = [90_000.0, 150_000.0, fastest, 150_000.0]
    shared_by = [1, 2, 8, 1] if counted_often else [1, 1, 1, 1]
    assert np.allclose(tokens / table.step_time_s, np.array(rates) / shared_by)
