"""Reads tables of measured training runs, recognised by their columns and never by their names.

The general form of a sweep is read here; the forms of single publications are in ``published`` and
``megatron``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.cost.jobs import RECOMPUTE, Array, jobs
from analysis.sweeps.record import (
    GIB,
    Keys,
    Table,
    TableError,
    check,
    clusters_of,
    contradictory,
    drop,
    frame_of,
    keys,
    numbers,
    shape_keys,
)
from benchmarks.published import megatron
from benchmarks.published import single as published
from search_spaces.frameworks import FRAMEWORKS

__all__ = ["Table", "TableError", "read", "read_by"]

SWEEP = {
    *("model", "layers", "hidden", "heads", "kv_heads", "ffn", "gated", "tied_emb", "vocab"),
    *("seq", "gpu", "n_nodes", "n_gpu", "dp", "tp", "pp", "mbs", "gas", "gbs", "zero_stage"),
    *("tok_s", "peak_mem_GB", "crashed_or_oom"),
}


def read_sweep(path: Path, frame: pd.DataFrame) -> Table:
    """The general form of a sweep; without a ``framework`` column nanotron's habits."""

    def n(name: str) -> Array:
        return numbers(frame, name, path)

    def flag(name: str) -> Array:
        return _choices(path, frame, name, _FLAGS, 0.0)

    def whole(name: str) -> Array:
        values = n(name)
        right = (values >= 1) & (values == np.floor(values))
        check(frame, name, right, "a whole number from 1 on", path)
        return values

    sequence_parallel = (
        _choices(path, frame, "sequence_parallel", _FLAGS, 1.0)
        if "sequence_parallel" in frame
        else np.ones(len(frame))
    )
    stages = {str(stage): float(stage) for stage in range(4)}
    j = jobs(
        {
            "num_layers": whole("layers"),
            "hidden_size": whole("hidden"),
            "num_heads": whole("heads"),
            "kv_heads": whole("kv_heads"),
            "ffn_size": whole("ffn"),
            "gated": flag("gated") == 1,
            "vocab_size": whole("vocab"),
            "seq_length": whole("seq"),
            "tied_embeddings": flag("tied_emb") == 1,
            "tp": whole("tp"),
            "pp": whole("pp"),
            "dp": whole("dp"),
            "mbs": whole("mbs"),
            "gas": whole("gas"),
            "zero_stage": _choices(path, frame, "zero_stage", stages, 0.0),
            "sequence_parallel": (sequence_parallel == 1) & (n("tp") > 1),
            "recompute": _choices(path, frame, "recompute", _RECOMPUTE, 0.0)
            if "recompute" in frame
            else 0.0,
        }
    )
    clusters, cluster = clusters_of(path, frame["gpu"], whole("n_gpu"), whole("n_nodes"))
    failed = flag("crashed_or_oom") == 1
    tokens_per_second = np.where(failed, np.nan, n("tok_s"))
    check(frame, "tok_s", ~(tokens_per_second <= 0), "a number above 0 in a row that ran", path)
    framework = _profiles(path, frame)
    landscape = keys(frame["model"], frame["gpu"], n("n_nodes"), n("seq"), framework)
    table = Table(
        name=path.stem,
        jobs=j,
        clusters=clusters,
        cluster=cluster,
        framework=framework,
        step_time_s=n("gbs") * n("seq") / tokens_per_second,
        peak_bytes=np.where(failed, np.nan, n("peak_mem_GB") * GIB),
        failed=failed,
        model=shape_keys(j),
        landscape=landscape,
        campaign=landscape,
        nodes=n("n_nodes"),
        memory_measure="torch",
    )
    reasons = contradictory(table, n("gbs"), n("n_gpu"))
    if "consistent" in frame:
        reasons["the source says that its columns contradict"] = n("consistent") == 0
    return drop(table, reasons)


_FLAGS = {"1": 1.0, "true": 1.0, "yes": 1.0, "0": 0.0, "false": 0.0, "no": 0.0}
_RECOMPUTE = {k: float(v) for k, v in RECOMPUTE.items()} | {"0": 0.0, "false": 0.0}


def _choices(
    path: Path, frame: pd.DataFrame, name: str, accepted: Mapping[str, float], default: float
) -> Array:
    plain = frame[name].str.strip().str.lower().str.removesuffix(".0")
    check(frame, name, plain.isin([*accepted, "", "nan", "n/a"]), ", ".join(accepted), path)
    return np.array([accepted.get(value, default) for value in plain])


def _profiles(path: Path, frame: pd.DataFrame) -> Keys:
    if "framework" not in frame:
        return np.full(len(frame), "nanotron")
    names = [re.sub(r"[\s_]+", "-", v.strip().lower()) or "nanotron" for v in frame["framework"]]
    check(frame, "framework", [name in FRAMEWORKS for name in names], ", ".join(FRAMEWORKS), path)
    return np.array(names, dtype=str)


FORMATS: dict[str, tuple[set[str], Callable[[Path, pd.DataFrame], Table]]] = {
    "sweep": (SWEEP, read_sweep),
    "vtrain": ({"iter_ms", "hidden", "layers", "tp", "pp", "dp", "mbs", "gas"}, published.vtrain),
    "bloom": ({"sec_per_iter", "tflops_formula", "mem_max_GB", "oom"}, published.bloom),
    "v100": ({"sec_per_iter", "tflops_check", "framework", "oom"}, published.v100),
    "mosaic": ({"sharding", "act_ckpt", "tokens_per_s", "hfu_pct"}, published.mosaic),
    "weak_scaling": ({"iter_s_derived", "schedule"}, megatron.weak_scaling),
    "zero3": ({"days_for_300B_tokens", "zero_stage"}, megatron.zero3),
    "korthikanti": ({"iter_s_full_recompute", "iter_s_seqpar_selective"}, megatron.korthikanti),
    "torchtitan": ({"local_bs", "fsdp", "mem_GiB"}, megatron.torchtitan),
    "bridge": ({"container", "tokens_per_s_gpu", "cp", "fsdp", "layers"}, megatron.bridge),
}


def read(path: Path) -> Table | None:
    """The table in a file, or None where its columns are of no known form.

    Raises:
        TableError: if the form is known and a value is not.
    """
    frame = frame_of(path)
    for kind, (needed, reader) in FORMATS.items():
        if needed <= set(frame.columns):
            return replace(_read(reader, path, frame), kind=kind)
    return None


def missing(frame: pd.DataFrame) -> list[str]:
    """Columns that a table of no known form lacks for the general form of a sweep."""
    return sorted(SWEEP - set(frame.columns))


def _read(reader: Callable[[Path, pd.DataFrame], Table], path: Path, frame: pd.DataFrame) -> Table:
    try:
        return reader(path, frame)
    except TableError:
        raise
    except ValueError as error:  # values that no job can have
        raise TableError(f"{path}: {error}") from error


def read_by(path: Path, columns: Sequence[str]) -> list[Table]:
    """Like :func:`read`, with the rows of equal values in ``columns`` as a table and landscape."""
    frame = frame_of(path)
    tables = []
    for kind, (needed, reader) in FORMATS.items():
        if needed <= set(frame.columns):
            for values, part in frame.groupby([frame[name] for name in columns], sort=True):
                table = _read(reader, path, part)
                key = " ".join(map(str, values))
                tables.append(replace(table, kind=kind, landscape=np.full(len(table), key)))
            break
    return tables
