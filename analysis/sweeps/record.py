"""A table of measured training runs, and the helpers of its readers."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.sweeps.gpus import UnknownGpuError, cluster_of, resized
from foundation.documents import as_written
from foundation.files import FileError, read_from, read_text
from foundation.messages import listed, shown
from search_spaces import Cluster
from trainer.plan.jobs import Array, Jobs, Mask
from trainer.plan.limits import MAX_GPUS_PER_NODE

Keys = NDArray[np.str_]

MAX_BYTES = 50_000_000
MAX_COLUMNS = 1000
MAX_VALUE = 1e15  # whatever a table measures, in whatever unit
MAX_COUNT = 1e9
_SQLITE = b"SQLite format 3\0"


class TableError(FileError):
    """A table that cannot be read; the message names the file, the value, and what is accepted."""


@dataclass(frozen=True)
class Table:
    """Measured runs, one per row."""

    name: str  # of the file, without its ending
    jobs: Jobs  # what was run
    clusters: Mapping[str, Cluster]  # their facts, by key
    cluster: Keys  # each row's key in ``clusters``
    framework: Keys
    step_time_s: Array  # nan if the run failed or its time is unknown
    peak_bytes: Array  # of the fullest GPU; nan if unknown
    failed: Mask  # the run did not train, for any reason
    model: Keys  # rows with the same key have the same layers and hidden size
    landscape: Keys  # likewise differ only in the configuration, so a search chooses among them
    campaign: Keys  # likewise were measured together, with the same software
    nodes: Array
    # source of ``peak_bytes``: ``torch`` (allocated by torch's allocator) or ``nvidia-smi`` (all of
    # the device's used memory)
    memory_measure: str = ""
    form: str = ""  # name of the form of its columns
    # stated habits of the framework by name, None where a row states none
    habits: Mapping[str, NDArray[np.object_]] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)  # excluded rows by reason
    notes: tuple[str, ...] = ()  # assumptions where the publication is silent
    unread: tuple[str, ...] = ()  # columns of the file that vary and mean nothing to its form

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, rows: Any) -> Table:
        """The rows that a mask, a slice or an array of indices selects."""
        columns = ("step_time_s", "peak_bytes", "failed", "nodes", *KEYS, "jobs")
        habits = {name: column[rows] for name, column in self.habits.items()}
        return replace(self, habits=habits, **{n: getattr(self, n)[rows] for n in columns})

    def machine(self) -> Cluster:
        """The first row's cluster; its node is cut to the largest run if that fills none."""
        cluster = self.clusters[str(self.cluster[0])]
        world = int(self.jobs.layout.world_size.max())
        return resized(cluster, world) if world < cluster.gpus_per_node else cluster


KEYS = ("cluster", "framework", "model", "landscape", "campaign")


def read_csv(path: Path) -> pd.DataFrame:
    """The rows of a CSV file as text, indexed by line number; ``#`` begins a comment line."""
    try:
        if path.is_file() and read_from(path, 0, len(_SQLITE)) == _SQLITE:
            url = f"sqlite:///{path}"
            raise FileError(f"{shown(path)}: an SQLite database; accepted by its URL, {shown(url)}")
        text = read_text(path, MAX_BYTES).replace("\r\n", "\n").split("\n")
    except FileError as error:
        raise TableError(str(error)) from None
    numbers = [i for i, line in enumerate(text) if line and not line.startswith("#")]
    begin = text[numbers[0]] if numbers else ""
    if begin.startswith("{"):
        raise TableError(
            f"{shown(path)}:{numbers[0] + 1}: found JSON, accepted a table with a line of column "
            "names; `optuna.copy_study` copies a journal of Optuna's to a URL sqlite:///x.db"
        )
    if other := [mark for mark in ";\t" if "," not in begin and mark in begin]:
        raise TableError(
            f"{shown(path)}:{numbers[0] + 1}: found {other[0]!r} between columns, accepted ',' "
            "(and '.' in numbers); put commas between columns"
        )
    reader = csv.reader(text[i] for i in numbers)
    try:
        read = ((numbers[reader.line_num - 1] + 1, row) for row in reader)
        rows = {line: row for line, row in read if any(map(str.strip, row))}  # a sheet's end
    except csv.Error as error:
        line = numbers[reader.line_num - 1] + 1
        raise TableError(f"{shown(path)}:{line}: not a row of a CSV file: {error}") from None
    if not rows:
        return pd.DataFrame()
    first = min(rows)
    header = [name.strip() for name in rows.pop(first)]
    if len(header) > MAX_COLUMNS:
        raise TableError(
            f"{shown(path)}:{first}: found {len(header):,} columns, accepted {MAX_COLUMNS:,}"
        )
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise TableError(f"{shown(path)}:{first}: found twice, accepted once: {listed(twice)}")
    for line, row in rows.items():
        if len(row) != len(header):
            raise TableError(
                f"{shown(path)}:{line}: found a row of {len(row)} values, accepted {len(header)}, "
                "as many as columns"
            )
    return pd.DataFrame(list(rows.values()), columns=header, index=list(rows))


def check(
    frame: pd.DataFrame, name: str, right: Iterable[bool], accepted: str, path: Path | None
) -> None:
    """Raise TableError that names the first wrong value of a column."""
    wrong = np.flatnonzero(~np.asarray(list(right), dtype=bool))
    if wrong.size:
        line, value = frame.index[wrong[0]], frame[name].iloc[wrong[0]]
        where = f"{shown(path)}:{line}: " if path else ""
        raise TableError(f"{where}{name} is {as_written(value)}, accepted {accepted}")


def number_column(frame: pd.DataFrame, name: str, path: Path | None = None) -> Array:
    """A column as numbers; blanks are nan."""
    text = frame[name].str.strip()
    values = pd.to_numeric(text.where(text != "", None), errors="coerce").to_numpy(float, copy=True)
    blank = text.str.lower().isin(["", "nan", "none", "n/a"])
    right = (np.abs(values) <= MAX_VALUE) | blank  # NaN compares false
    check(frame, name, right, f"nothing, or a number up to {MAX_VALUE:g}", path)
    return np.asarray(values, dtype=float)


def count_column(frame: pd.DataFrame, name: str, path: Path | None = None) -> Array:
    """A column of whole numbers >= 1."""
    values = number_column(frame, name, path)
    right = (values >= 1) & (values == np.floor(values)) & (values <= MAX_COUNT)
    check(frame, name, right, f"a whole number from 1 to {MAX_COUNT:,.0f}", path)
    return values


def keys(*columns: Iterable[Any]) -> Keys:
    """One key per row, made of several columns."""
    short = [[f"{v:g}" if isinstance(v, float) else str(v) for v in c] for c in columns]
    rows = zip(*short, strict=True)
    return np.array([" ".join(row) for row in rows], dtype=str)


def shape_keys(j: Jobs) -> Keys:
    """Layers x hidden size, the identity of a model when folds leave it out."""
    return keys(
        [f"{n:g}x{h:g}" for n, h in zip(j.model.num_layers, j.model.hidden_size, strict=True)]
    )


def drop(table: Table, reasons: Mapping[str, Mask]) -> Table:
    """The table without the masked rows, each counted under the first reason that has it."""
    keep = np.ones(len(table), dtype=bool)
    left_out = Counter(table.left_out)
    for reason, mask in reasons.items():
        left_out[reason] += int(np.sum(keep & mask))
        keep &= ~mask
    return replace(table[keep], left_out=+left_out)  # without reasons that no row has


def contradictory(table: Table, global_batch: Array, world_size: Array) -> dict[str, Mask]:
    """Rows whose degrees do not multiply to their own number of GPUs or global batch."""
    j = table.jobs
    return {
        "dp * tp * pp * cp is not the number of GPUs": j.layout.axes.world_size != world_size,
        "mbs * gas * dp is not the global batch": j.global_batch != global_batch,
    }


def clusters_of(
    path: Path, gpus: pd.Series[str], num_gpus: Array, num_nodes: Array
) -> tuple[dict[str, Cluster], Keys]:
    """Clusters by key, and each row's key; a run on part of a node counts as on that node."""
    names = np.array([str(gpu) for gpu in gpus], dtype=str)
    cluster = np.empty(len(names), dtype=object)
    clusters: dict[str, Cluster] = {}
    for name in np.unique(names):
        rows = names == name
        wide = rows & (num_nodes > 1)
        per_node = int((num_gpus[wide] / num_nodes[wide]).max()) if wide.any() else None
        where = f"{shown(path)}:{gpus.index[rows][0]}"
        if per_node is not None and not 1 <= per_node <= MAX_GPUS_PER_NODE:
            raise TableError(
                f"{where}: found {per_node:,} GPUs on a node (n_gpu over n_nodes), accepted 1 to "
                f"{MAX_GPUS_PER_NODE:,}"
            )
        beside = path.parent / str(name)  # a cluster's file
        try:
            found = cluster_of(str(beside if beside.is_file() else name), per_node)
        except (UnknownGpuError, FileError) as error:
            raise TableError(f"{where}: {error}") from None
        clusters[found.name] = found
        cluster[rows] = found.name
    return clusters, cluster.astype(str)
