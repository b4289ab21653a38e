"""Rows of a sweep's table, as a person would write them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from analysis.sweeps.read import read_tables
from analysis.sweeps.record import Table

SWEEP = (
    "model,layers,hidden,heads,kv_heads,ffn,gated,tied_emb,vocab,seq,gpu,n_nodes,n_gpu,dp,tp,pp,"
    "mbs,gas,gbs,zero_stage,tok_s,peak_mem_GB,crashed_or_oom"
)


def sweep(path: Path, rows: Sequence[str], columns: str = SWEEP) -> Path:
    path.write_text("# a source\n" + "\n".join([columns, *rows]) + "\n")
    return path


def row(
    dp: int = 8,
    tp: int = 1,
    mbs: int = 1,
    gas: int = 4,
    *,
    layers: int = 16,
    gpu: str = "H100-80GB",
    nodes: int = 1,
    tok_s: str = "1000",
    gb: str = "10",
    failed: int = 0,
) -> str:
    shape = f"m{layers},{layers},2048,32,8,8192,1,1,131072,4096,{gpu},{nodes},{dp * tp},{dp},{tp},1"
    return f"{shape},{mbs},{gas},{mbs * gas * dp},1,{tok_s},{gb},{failed}"


def changed(**values: str) -> str:
    """A row with other values in these columns."""
    columns = dict(zip(SWEEP.split(","), row().split(","), strict=True))
    return ",".join({**columns, **values}.values())


def failed_row(dp: int = 8, mbs: int = 1, gas: int = 4) -> str:
    return row(dp, 1, mbs, gas, tok_s="", gb="", failed=1)


def read_sweep(path: Path, rows: Sequence[str]) -> Table:
    (table,) = read_tables(sweep(path / "any_name.csv", rows))
    return table
