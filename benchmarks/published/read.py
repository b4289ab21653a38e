"""Measured tables of every known form: sweeps, and those of single publications."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from analysis.sweeps import read as sweeps
from analysis.sweeps.record import Table, read_csv
from benchmarks.published import megatron, single, tuned

FORMATS: Mapping[str, sweeps.Format] = {
    "trl": ({"tok_s_printed", "sp", "liger"}, single.trl),  # a sweep, but for its rates
    **sweeps.TABLE_FORMATS,
    "bloom": ({"sec_per_iter", "tflops_formula", "mem_max_GB", "oom"}, single.bloom),
    "v100": ({"sec_per_iter", "tflops_check", "framework", "oom"}, single.v100),
    "mosaic": ({"sharding", "act_ckpt", "tokens_per_s", "hfu_pct"}, single.mosaic),
    "weak_scaling": ({"iter_s_derived", "schedule"}, megatron.weak_scaling),
    "zero3": ({"days_for_300B_tokens", "zero_stage"}, megatron.zero3),
    "korthikanti": ({"iter_s_full_recompute", "iter_s_seqpar_selective"}, megatron.korthikanti),
    "torchtitan": ({"local_bs", "fsdp", "mem_GiB"}, megatron.torchtitan),
    "dgxc": ({"release", "source_file", "iter_s", "precision", "layers"}, tuned.dgxc),
    "mlperf": ({"round", "config_file", "iter_s", "precision", "layers"}, tuned.mlperf),
    "mixtures": ({"container", "tokens_per_s_gpu", "ep", "ga", "where"}, tuned.mixtures),
    "bridge": ({"container", "tokens_per_s_gpu", "cp", "fsdp", "layers"}, tuned.bridge),
}


def read_table(path: Path) -> Table | None:
    """The table in a file; None where its columns are of no known form.

    Raises:
        TableError: if the form is known and a value is not.
    """
    frame = read_csv(path)
    have = {*frame.columns}
    form = next((form for form, (needed, _) in FORMATS.items() if needed <= have), None)
    return None if form is None else sweeps.read_as(form, FORMATS, path, frame)
