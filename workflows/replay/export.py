"""A run as an open landscape: a CSV file in the general form that ``meshtune replay`` reads."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import Metrics, Pricing, Run, Trial, read_tables
from foundation.documents import written_document
from foundation.files import FileError
from foundation.messages import listed, shown
from foundation.writing import write_atomically
from search_spaces import SearchSpace
from trainer.plan.jobs import Jobs
from workflows.replay.landscape import precisions

GIB = 2**30
_COLUMNS = {  # of docs/guide/policies.md, with those of Jobs
    "layers": "num_layers", "hidden": "hidden_size", "heads": "num_heads", "kv_heads": "kv_heads",
    "ffn": "ffn_size", "vocab": "vocab_size", "seq": "seq_length", "gated": "gated",
    "tied_emb": "tied_embeddings", "dp": "dp", "tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep",
    "vpp": "vpp", "mbs": "mbs", "gas": "gas", "n_gpu": "world_size", "zero_stage": "zero_stage",
    "sequence_parallel": "sequence_parallel",
}  # fmt: skip
_EXPERTS = ("experts", "experts_per_token", "expert_ffn", "shared_ffn", "dense_layers")


def export(run: Run, space: SearchSpace, licence: str, path: Path) -> int:
    """Write the completed trials of a run, and its cluster's facts beside them; returns how many.

    Raises FileError if the general form cannot express the run, or a file exists;
    NotPricedError if the space has no model or no cluster.
    """
    facts = path.with_suffix(".cluster.yaml")
    trials = [trial for trial in run.trials.values() if trial.completed]
    pricing = Pricing(space)
    habits = space.program.habits
    stated = {name: getattr(habits, name) for name in sorted(habits.stated)}
    _check(run, trials, pricing, stated, (path, facts))
    jobs = pricing.jobs_of([trial.config for trial in trials])
    peaks = [Metrics(trial.result).get("peak_memory_bytes") for trial in trials]
    rates = [Metrics(t.result).get("tokens_per_second") if t.ok else None for t in trials]
    columns = _jobs(jobs) | {
        "model": [space.model_name or space.name] * len(trials),
        "gpu": [facts.name] * len(trials),
        "framework": [habits.name] * len(trials),
        "n_nodes": [space.num_nodes(trial.config) for trial in trials],
        "tok_s": [rate or "" for rate in rates],
        "peak_mem_GB": [peak / GIB if peak else "" for peak in peaks],
        "crashed_or_oom": [int(not trial.ok) for trial in trials],
        **{name: [value] * len(trials) for name, value in stated.items()},
    }
    assert space.cluster is not None  # it is priced
    write_atomically(facts, written_document(space.cluster.model_dump(exclude_defaults=True)))
    text = io.StringIO(f"# licence: {licence}\n# a landscape that `meshtune replay` reads\n")
    text.seek(0, io.SEEK_END)
    rows = zip(*columns.values(), strict=True)
    csv.writer(text, lineterminator="\n").writerows([list(columns), *rows])
    write_atomically(path, text.getvalue())
    [table] = read_tables(path)
    told, own = table.jobs.columns(), jobs.columns() | {"zero_stage": columns["zero_stage"]}
    if lost := [n for n in own if n not in told or not np.array_equal(own[n], told[n])]:
        path.unlink()
        facts.unlink()
        raise FileError(
            f"{shown(path)}: the general form cannot say {listed(lost)} of {space.name}; "
            "`meshtune replay` reads its run, and its entry in the archive"
        )
    return len(trials)


def _check(
    run: Run,
    trials: Sequence[Trial],
    pricing: Pricing,
    habits: Mapping[str, Any],
    files: Sequence[Path],
) -> None:
    """Raise, before anything is written, if data would be lost or are simulated."""
    for file in files:
        if file.exists():
            raise FileError(f"{shown(file)} exists: choose another --out, or remove it")
    if run.launcher == "simulate":
        raise FileError(
            f"{run.where} is simulated: only measurements are exported; `meshtune replay` reads "
            "the run itself"
        )
    varied = [n for n in pricing.unpriced if len({str(t.config.get(n)) for t in trials}) > 1]
    wide = [n for n, v in habits.items() if n == "sequence_parallel" or isinstance(v, tuple)]
    if lost := [*varied, *wide]:
        raise FileError(
            f"the general form has no column for {listed(lost)} of {pricing.space.name}; "
            "`meshtune replay` reads its run, and its entry in the archive"
        )


def _jobs(jobs: Jobs) -> dict[str, list[Any]]:
    """Shapes and configurations in the columns of the general form."""
    number = jobs.columns()
    columns = {name: number[key] for name, key in _COLUMNS.items()}
    columns["zero_stage"] = np.maximum(columns["zero_stage"], 0)  # not said: none
    columns |= {"gbs": jobs.global_batch, "head_dim": jobs.model.head_dim}
    if jobs.model.mixture is not None:
        columns |= dict(zip(_EXPERTS, jobs.model.mixture, strict=False))
    return {name: column.astype(int).tolist() for name, column in columns.items()} | {
        "recompute": jobs.recompute_words.tolist(),
        "precision": precisions(jobs),
    }
