"""Readers of tables of measured training runs, recognized by their columns, not by file names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.sweeps import record
from analysis.sweeps.gpus import with_network
from analysis.sweeps.record import Table, TableError
from analysis.units import GIB
from foundation.documents import plain_scalar, read_document
from foundation.messages import listed
from search_spaces import Cluster, Framework
from trainer.plan.jobs import BY_HABIT, FULL, MODULES, RECOMPUTE, SELECTIVE, Array, Jobs, Mask, jobs
from trainer.plan.sizes import Mixture

_TABLE: dict[str, Any] = read_document(Path(__file__).with_suffix(".yaml")).root.plain()
SWEEP = {name for names in _TABLE["sweep"] for name in names}
VTRAIN = {"iter_ms", "gbs", "n_gpu", *_TABLE["vtrain"].values()}
_BLANK = {"element_bytes": 2.0, "flash_attention": BY_HABIT}  # values of blanks, if not 0
_SHARED = ("fused_loss", "liger", "attention")  # the same in all rows of a landscape
_EXPERTS = ("experts", "experts_per_token", "expert_ffn", "shared_ffn", "dense_layers")
_DEGREES = ("cp", "ep", "vpp")
_READ = {
    *(*SWEEP, *_EXPERTS, *_DEGREES, *_TABLE["also"], "sp", "framework", "head_dim", "consistent"),
    *("recompute", "recompute_modules", *(column for column, _ in _TABLE["choices"].values())),
}


@dataclass(frozen=True)
class _Columns:
    """The columns of a sweep, checked as they are read."""

    path: Path
    frame: pd.DataFrame

    def number(self, name: str) -> Array:
        return record.number_column(self.frame, name, self.path)

    def count(self, name: str) -> Array:
        return record.count_column(self.frame, name, self.path)

    def flag(self, name: str, default: bool = False) -> Mask:
        return np.asarray(self.choice(name, _TABLE["flags"], default) == 1)

    def choice(self, name: str, accepted: Mapping[str, float], default: float = 0.0) -> Array:
        """Each word's number; the default for a blank."""
        plain = self.frame[name].str.strip().str.lower().str.removesuffix(".0")
        right = plain.isin([*accepted, "", "nan", "n/a"])
        record.check(self.frame, name, right, ", ".join(accepted), self.path)
        return np.array([accepted.get(value, default) for value in plain], dtype=float)

    def framework(self) -> record.Keys:
        """Names of frameworks, known or not; nanotron for a blank."""
        if "framework" not in self.frame:
            return np.full(len(self.frame), "nanotron")
        words = self.frame["framework"].str.strip().str.lower()
        names = [re.sub(r"[^a-z0-9.]+", "-", word).strip("-.") or "nanotron" for word in words]
        return np.array(names, dtype=str)


def _jobs(columns: _Columns) -> Jobs:
    """The jobs; sequence parallelism goes with tensor parallelism unless a column says no.

    Further degrees, heads of another size, precision, kernels and experts are optional columns.
    """
    frame = columns.frame
    sequence_parallel: Mask = np.ones(len(frame), dtype=bool)
    if "sequence_parallel" in frame:
        sequence_parallel = columns.flag("sequence_parallel", default=True)
    given: dict[str, Any] = {n: columns.count(n) for n in _DEGREES if n in frame}
    if "sp" in frame:  # Ulysses: another way to split sequences
        given["cp"] = given.get("cp", 1) * columns.count("sp")
    recompute = ("recompute", {**RECOMPUTE, "0": 0, "false": 0})
    for name, (column, words) in {"recompute": recompute, **_TABLE["choices"]}.items():
        if column in frame:
            given[name] = columns.choice(column, words, _BLANK.get(name, 0.0))
    if "recompute_modules" in frame:
        words = frame["recompute_modules"].str.lower().str.findall(r"\w+")
        right = [{*each} <= {*MODULES} or each == ["none"] for each in words]
        accepted = ", ".join(MODULES) + "; or none alone"
        record.check(frame, "recompute_modules", right, accepted, columns.path)
        given["recompute_modules"] = names = words.str.join(",").replace("", "none").to_numpy(str)
        given.setdefault("recompute", np.where(names == "none", 0, SELECTIVE))
    if "head_dim" in frame:
        given["attention_size"] = columns.count("heads") * columns.count("head_dim")
    if "experts" in frame:
        numbers = [np.nan_to_num(columns.number(name)) for name in _EXPERTS]
        if numbers[0].any():
            given["mixture"] = Mixture._make([*numbers, np.ones(len(frame))])
    return jobs(
        {
            **given,
            **{name: columns.count(column) for name, column in _TABLE["counts"].items()},
            "gated": columns.flag("gated"),
            "tied_embeddings": columns.flag("tied_emb"),
            "zero_stage": columns.choice("zero_stage", {str(stage): stage for stage in range(4)}),
            "sequence_parallel": sequence_parallel & (columns.number("tp") > 1),
        }
    )


def _habits(columns: _Columns) -> dict[str, NDArray[np.object_]]:
    """Columns with the name of a framework's habit, which state it; blanks state nothing."""
    found = {}
    for name in Framework.habits(columns.frame.columns) - {"sequence_parallel"}:
        text = columns.frame[name].str.strip().str.lower()
        values = [None if word == "" else plain_scalar(word) for word in text]
        right = [value is None or Framework.is_habit(name, value) for value in values]
        record.check(columns.frame, name, right, "nothing, or a value of this habit", columns.path)
        found[name] = np.array(values, dtype=object)
    return found


def read_sweep(path: Path, frame: pd.DataFrame) -> Table:
    """Read the general form; the framework is nanotron unless a column says otherwise."""
    frame = frame.rename(columns={a: b for a, b in _TABLE["also"].items() if b not in frame})
    columns = _Columns(path, frame)
    what = _jobs(columns)
    num_gpus, nodes = columns.count("n_gpu"), columns.count("n_nodes")
    clusters, cluster = record.clusters_of(path, frame["gpu"], num_gpus, nodes)
    failed = columns.flag("crashed_or_oom")
    tokens_per_second = np.where(failed, np.nan, columns.number("tok_s"))
    record.check(
        frame, "tok_s", ~(tokens_per_second <= 0), "a number above 0 in a row that ran", path
    )
    framework = columns.framework()
    batch, seq_length = columns.number("gbs"), columns.number("seq")
    habits = _habits(columns)
    also = [frame[name] for name in (*_SHARED, *sorted(habits)) if name in frame]
    landscape = record.keys(frame["model"], frame["gpu"], nodes, seq_length, framework, *also)
    read = {*_READ, *Framework.habits(frame.columns)}
    unread = [str(name) for name in frame if name not in read]
    table = Table(
        name=path.stem,
        jobs=what,
        clusters=clusters,
        cluster=cluster,
        framework=framework,
        step_time_s=batch * seq_length / tokens_per_second,
        peak_bytes=np.where(failed, np.nan, columns.number("peak_mem_GB") * GIB),
        failed=failed,
        model=record.shape_keys(what),
        landscape=landscape,
        campaign=landscape,
        nodes=nodes,
        memory_measure="torch",
        habits=habits,
        unread=tuple(name for name in unread if frame[name].nunique() > 1),
    )
    reasons = record.contradictory(table, batch, num_gpus)
    if "consistent" in frame:
        reasons["the source says that its columns contradict"] = columns.number("consistent") == 0
    return record.drop(table, reasons)


def read_vtrain(path: Path, frame: pd.DataFrame) -> Table:
    """Read vTrain's form (Bang et al. 2024, MICRO, its artifact): plain GPTs, ms per iteration.

    Megatron-DeepSpeed, eight A100 per node, 800 Gb/s between nodes.
    """
    names = (*_TABLE["vtrain"].values(), "gbs", "n_gpu")
    counts = {name: record.count_column(frame, name, path) for name in names}
    times_ms = record.number_column(frame, "iter_ms", path)
    record.check(frame, "iter_ms", ~(times_ms <= 0), "a number above 0", path)
    gpts = jobs(
        {name: counts[column] for name, column in _TABLE["vtrain"].items()}
        | {
            "kv_heads": counts["heads"],
            "ffn_size": 4 * counts["hidden"],
            "vocab_size": record.number_column(frame, "vocab") if "vocab" in frame else 51200,
            "gated": False,
            "tied_embeddings": True,
            "recompute": FULL,
            "zero_stage": 0,
        }
    )
    home = with_network(Cluster.named("dgx_a100"), 4, 25)
    landscape = record.keys(record.shape_keys(gpts), gpts.layout.world_size, gpts.global_batch)
    table = Table(
        name=path.stem,
        jobs=gpts,
        clusters={home.name: home},
        cluster=np.full(len(gpts), home.name),
        framework=np.full(len(gpts), "megatron-deepspeed-2022"),
        step_time_s=times_ms / 1e3,
        peak_bytes=np.full(len(gpts), np.nan),
        failed=np.zeros(len(gpts), dtype=bool),
        model=record.shape_keys(gpts),
        landscape=landscape,
        campaign=landscape,
        nodes=np.ceil(gpts.layout.world_size / home.gpus_per_node),
        notes=("vocabulary of 51200 and ZeRO stage 0 are assumed",),
    )
    return record.drop(table, record.contradictory(table, counts["gbs"], counts["n_gpu"]))


_OTHER_WORDS = {b: a for a, b in _TABLE["also"].items()}
Format = tuple[Set[str], Callable[[Path, pd.DataFrame], Table]]
"""The columns that identify a form, and its reader."""
TABLE_FORMATS: Mapping[str, Format] = {
    "sweep": (SWEEP, read_sweep),
    "sweep in other words": ({_OTHER_WORDS.get(name, name) for name in SWEEP}, read_sweep),
    "vtrain": (VTRAIN, read_vtrain),
}
"""Forms of tables by name; the first that fits is used."""


def read_as(form: str, formats: Mapping[str, Format], path: Path, frame: pd.DataFrame) -> Table:
    """The table of a form; raises TableError for values that no job can have."""
    try:
        return replace(formats[form][1](path, frame), form=form)
    except TableError:
        raise
    except ValueError as error:
        raise TableError(f"{path}: {error}") from error


def read_tables(path: Path, columns: Sequence[str] = ()) -> list[Table]:
    """The tables in a CSV file, one for each combination of values in ``columns``.

    Raises TableError if the form, a column or a value is not accepted; the message names it.
    """
    frame = record.read_csv(path)
    if unknown := [name for name in columns if name not in frame]:
        raise TableError(f"{path}: no column {listed(unknown)}; it has {listed(frame.columns)}")
    have = {*frame.columns}
    form = next((f for f, (needed, _) in TABLE_FORMATS.items() if needed <= have), "")
    if not form:
        raise TableError(
            f"{path}: of no known form ({', '.join(TABLE_FORMATS)}, or a run's results.csv); it "
            f"has the columns {listed(frame.columns) or 'none'}, and for the form 'sweep' lacks "
            f"{', '.join(sorted(SWEEP - have))}"
        )
    if not columns:
        return [read_as(form, TABLE_FORMATS, path, frame)]
    tables = []
    for values, part in frame.groupby([frame[name] for name in columns], sort=True):
        table = read_as(form, TABLE_FORMATS, path, part)
        key = " ".join(map(str, values))
        tables.append(replace(table, landscape=np.full(len(table), key)))
    return tables
