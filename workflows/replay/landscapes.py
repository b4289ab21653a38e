"""The landscapes of a file: a sweep, a run, or another program's search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis import (
    Run,
    RunFolder,
    Table,
    TableError,
    Trial,
    read_csv,
    read_results,
    read_run,
    read_tables,
    results_run,
)
from foundation.documents import as_written, plain_scalar
from foundation.messages import listed, shown
from foundation.quantities import counted
from search_spaces import SearchSpace, load_space
from trainer.plan.axes.mesh import beside_dp
from trainer.plan.jobs import BY_HABIT
from workflows.replay.landscape import Landscape, answer, of_results, precisions, recorded_space

_VARIED = (*beside_dp(), "vpp", "mbs", "gas", "zero_stage", "sequence_parallel", "recompute")
_MODEL = ("num_layers", "hidden_size", "num_heads", "kv_heads", "ffn_size", "vocab_size")
_SAME = (  # in every row of a landscape
    *(*_MODEL, "attention_size", "gated", "tied_embeddings", "seq_length"),
    *("fused_loss", "chunked_loss", "flash_attention"),
)
_EXPERTS = (
    *("num_experts", "experts_per_token", "expert_ffn_hidden_size", "shared_ffn_hidden_size"),
    "dense_layers",
)


def recorded(
    where: Path | str, columns: Sequence[str] = (), study: str = ""
) -> tuple[list[Landscape], Mapping[str, int]]:
    """The landscapes of a sweep or of a search's results, and counts of left-out rows by reason.

    Args:
        where: a table's file, a run's folder or ``results.csv``, DeepHyper's, or the URL of an
            Optuna storage, in which ``study`` names one.
        columns: rows with equal values in these columns are one landscape; default: by the table's
            form.

    Raises TableError if there is nothing to replay; the message says why.
    """
    if "://" in str(where):
        return [_of_search(columns, shown(where), of_results(read_results(str(where), study)))], {}
    path = Path(where)
    with suppress(OSError):  # an unreadable path has its error when it is read
        if path.is_dir() and not RunFolder(path).started:
            path /= "results.csv"
    if RunFolder(path).started:
        return [_of_search(columns, str(path), _of_folder(path))], {}
    if run := results_run(path):
        own = (path.parent / "space.yaml").is_file()
        return [_of_search(columns, str(path), _of_run(path, run) if own else of_results(run))], {}
    found: list[Landscape] = []
    left_out: Counter[str] = Counter()
    for table in read_tables(path, columns):
        mine = [*landscapes(table)]
        found += mine
        left_out.update({**table.left_out, **_unused(table, mine)})
    if not found:
        raise TableError(
            f"{path}: nothing to replay: no landscape has two configurations of which one ran"
        )
    return found, left_out


def _of_search(columns: Sequence[str], where: str, landscape: Landscape) -> Landscape:
    if columns:
        raise TableError(f"{where}: a search is one landscape; leave --landscape out")
    return landscape


def _unused(table: Table, found: Sequence[Landscape]) -> dict[str, int]:
    """Rows of a table that no landscape took, by reason."""
    silent = ~table.failed & ~np.isfinite(table.step_time_s)
    others = ~silent & ~np.isin(table.landscape, [landscape.key for landscape in found])
    reasons = {
        "neither ran nor failed": int(silent.sum()),
        "nothing to choose, or none that ran, in the row's landscape": int(others.sum()),
    }
    return {reason: count for reason, count in reasons.items() if count}


def repeats(found: Sequence[Landscape]) -> str:
    """A line on rows that count as repeats, with columns that might tell them apart; "" if none."""
    count = sum(len(a) - 1 for landscape in found for a in landscape.answers.values())
    if not count:
        return ""
    unread = [*dict.fromkeys(name for landscape in found for name in landscape.unread)]
    which = f"; not read, and perhaps a choice: {listed(unread)}" if unread else ""
    return f"repeats: {counted(count, 'row')} of a configuration that another row has{which}"


def landscapes(table: Table) -> Iterator[Landscape]:
    """The landscapes of a sweep with two configurations or more, of which one ran."""
    for key in np.unique(table.landscape):
        part = table[table.landscape == key]
        ran = np.isfinite(part.step_time_s).any()
        if ran and len((landscape := _landscape(str(key), part)).configs) > 1:
            yield landscape


def _of_folder(folder: Path) -> Landscape:
    """A run's own trials by its journal; ``results.csv`` may be missing, or behind it."""
    run, space = read_run(folder), replace(RunFolder(folder).frozen_space(), more_objectives=())
    run.check_configurations(space)
    trials = (t for t in run.trials.values() if t.completed)
    recorded = (answer(trial, space.canonical(trial.config)) for trial in trials)
    return Landscape.of(space.name, space, recorded).checked(str(folder))


def _of_run(path: Path, run: Run) -> Landscape:
    """A run's own trials in its own space, by its ``results.csv``."""
    file = path.parent / "space.yaml"
    space = replace(load_space(str(file)), more_objectives=())  # a landscape has only the first
    names = dict.fromkeys(name for trial in run.trials.values() for name in trial.config)
    if unknown := [name for name in names if name not in space.parameters]:
        raise TableError(f"{path}: {file} has no parameter {listed(unknown)}")

    def trials() -> Iterator[Trial]:
        for line, trial in zip(read_csv(path).index, run.trials.values(), strict=True):
            where = f"{path}:{line}"
            raw = {name: _value(where, space, name, v) for name, v in trial.config.items()}
            try:
                config = space.canonical(raw)
            except ValueError as error:  # a parameter is missing, or has no value here
                raise TableError(f"{where}: p:{error}") from None
            yield answer(trial, config)

    return Landscape.of(space.name, space, trials()).checked(str(path))


def _value(where: str, space: SearchSpace, name: str, value: Any) -> Any:
    """The value of a parameter that was read from text, where words may look like numbers."""
    parameter = space.parameters[name]
    if value is None or parameter.span is not None:
        return value  # canonical() checks the interval
    values = {plain_scalar(str(v)): v for v in parameter.values}
    if value not in values:
        accepted = listed(parameter.values)
        raise TableError(f"{where}: p:{name} is {as_written(value)}, accepted {accepted}")
    return values[value]


def _landscape(key: str, table: Table) -> Landscape:
    table = table[table.failed | np.isfinite(table.step_time_s)]  # others have no outcome
    jobs = table.jobs
    _check_same(key, table)
    cluster = table.machine()
    nodes = np.maximum(np.round(jobs.layout.world_size / cluster.gpus_per_node), 1)
    numbers = jobs.columns()
    columns = {name: numbers[name] for name in _VARIED} | {"num_nodes": nodes}
    columns["zero_stage"] = np.maximum(columns["zero_stage"], 0)
    lists = {name: column.astype(int).tolist() for name, column in columns.items()}
    lists["sequence_parallel"] = [bool(flag) for flag in lists["sequence_parallel"]]
    lists["recompute"] = jobs.recompute_words.tolist()
    precision = precisions(jobs)
    if {*precision} != {"bf16"}:
        lists["precision"] = precision
    rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    space = _space(key, table, cluster.model_dump(exclude_defaults=True), rows)
    recorded = (_answer(table, row, space.canonical(raw)) for row, raw in enumerate(rows))
    return replace(Landscape.of(key, space, recorded, str(table.model[0])), unread=table.unread)


def _answer(table: Table, row: int, config: dict[str, Any]) -> Trial:
    jobs, step_time_s = table.jobs, float(table.step_time_s[row])
    if not np.isfinite(step_time_s):
        # sweeps do not tell it from other crashes
        return Trial(row, config, 0.0, kind="oom")
    result: dict[str, Any] = {"step_time_s": {"median": step_time_s}}
    if np.isfinite(table.peak_bytes[row]):
        result["peak_memory_bytes"] = float(table.peak_bytes[row])
    speed = float(jobs.global_batch[row] * jobs.model.seq_length[row]) / step_time_s
    return Trial(row, config, 0.0, kind="ok", objective=speed, result=result)


def _check_same(key: str, table: Table) -> None:
    numbers = table.jobs.columns()
    columns: dict[str, Any] = {name: numbers[name] for name in _SAME}
    columns |= {"gpu": table.cluster, "framework": table.framework}
    columns |= {name: column.astype(str) for name, column in table.habits.items()}
    if mixed := [name for name, column in columns.items() if len(np.unique(column)) > 1]:
        raise TableError(
            f"{table.name}: landscape {as_written(key)} has rows that differ in "
            f"{', '.join(mixed)}; name columns that tell them apart as well"
        )


def _framework(table: Table) -> str | dict[str, Any]:
    """The framework of a landscape, with the habits that its rows and kernels state."""
    options, base = table.jobs.options, str(table.framework[0])
    stated = {name: column[0] for name, column in table.habits.items() if column[0] is not None}
    if options.flash_attention[0] != BY_HABIT:
        stated["flash_attention"] = bool(options.flash_attention[0])
    if options.fused_loss[0] or options.chunked_loss[0]:
        stated |= {"logits_bytes": 0, "logit_copies": int(not options.chunked_loss[0])}
    return {"base": base, **stated} if stated else base


def _space(
    key: str, table: Table, cluster: dict[str, Any], rows: Sequence[Mapping[str, Any]]
) -> SearchSpace:
    jobs = table.jobs
    has_own_heads = jobs.model.attention_size[0] != jobs.model.hidden_size[0]
    numbers, names = jobs.columns(), {"kv_heads": "num_kv_heads", "ffn_size": "ffn_hidden_size"}
    model = {
        **{names.get(n, n): int(numbers[n][0]) for n in (*_MODEL, "seq_length")},
        **({"head_size": int(jobs.model.head_dim[0])} if has_own_heads else {}),
        "activation": "swiglu" if jobs.model.gated[0] else "gelu",
        "tied_embeddings": bool(jobs.model.tied_embeddings[0]),
    }
    if jobs.model.mixture is not None:
        model |= {name: int(n[0]) for name, n in zip(_EXPERTS, jobs.model.mixture, strict=False)}
    cluster.pop("source", None)
    return recorded_space(
        f"{table.name}: landscape {as_written(key)} is no space",
        description=key,
        model=model,
        cluster=cluster,
        trainer={"command": ["recorded"], "framework": _framework(table)},
        parameters={name: sorted({row[name] for row in rows}) for name in rows[0]},
        objective={"maximize": "tokens_per_second"},
        allow=["tp_across_nodes"],
    )
