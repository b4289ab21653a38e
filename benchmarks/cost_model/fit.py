"""Fits constants to published tables; writes analysis/cost/fitted.yaml.

    python -m benchmarks.cost_model.fit --truth FOLDER [--framework NAME]

Each framework's constants are fitted to its rows on the one machine that has most of them. Those
that also hold on other machines, and those of a kind of GPU, are fitted to all tables
(``transfer``). The accuracy benchmark uses that file only for tables that it was not fitted to.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from analysis.cost.constants import Array, Constants
from analysis.cost.fitted import FILE
from analysis.cost.memory_fit import Measurements
from analysis.cost.model import CostModel
from analysis.cost.network import Network
from analysis.sweeps.record import Table
from benchmarks.cost_model.failures import not_memory
from benchmarks.published.read import read_table
from search_spaces.frameworks import Framework
from search_spaces.known import FRAMEWORKS
from trainer.plan.jobs import joined

from .between_models import fitted_to
from .transfer import of_framework, of_gpus, parts_of

LEAST_ROWS = 50  # with a step time, from which a fit says more than the priors
MOST_ROWS = 400  # of one table, so that none dominates the others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truth", type=Path, required=True, metavar="FOLDER")
    parser.add_argument(
        "--framework", metavar="NAME", help="fit this one only, and leave all else as it was"
    )
    arguments = parser.parse_args()
    truth = arguments.truth
    tables = [
        t for path in sorted(truth.glob("*.csv")) if (t := read_table(path)) is not None and len(t)
    ]
    timed_parts = parts_of(tables)
    before = yaml.safe_load(FILE.read_text())
    only = arguments.framework
    frameworks = {} if only is None else before["frameworks"]
    for name, framework in FRAMEWORKS.items():
        if only not in (None, name):
            continue
        own: dict[str, Any] = {}
        if found := _on_one_machine(tables, framework):
            own = written(found[0], found[1])
            if not _says_of_memory(tables, name):
                del own["memory"]
            print(f"{name}: {own['source']}, spread {own['log_sd']}")
        if elsewhere := of_framework(timed_parts, name):
            frameworks[name] = {**own, "elsewhere": elsewhere}
    content = {
        "tables": {table.name: len(table) for table in tables},
        "gpus": of_gpus(timed_parts) if only is None else before["gpus"],
        "frameworks": frameworks,
    }
    FILE.write_text(HEAD + yaml.safe_dump(content, sort_keys=False, default_flow_style=None))


HEAD = """\
# Written by python -m benchmarks.cost_model.fit from these tables, with their numbers of rows.
# gpus: by advertised TFLOP/s. frameworks: time and memory are all constants on one machine, with
# the deviation of their logarithms; elsewhere those of them that hold on other machines.
"""


def _on_one_machine(tables: Sequence[Table], framework: Framework) -> tuple[CostModel, str] | None:
    """A framework's model on the machine that has most of its rows, and their source in words."""
    by_machine: dict[str, list[Table]] = {}
    for table in tables:
        for key in np.unique(table.cluster[table.framework == framework.name]):
            rows = (table.cluster == key) & (table.framework == framework.name)
            by_machine.setdefault(str(key), []).append(thinned(table[rows]))
    if not by_machine:
        return None
    key, parts = max(by_machine.items(), key=lambda item: sum(map(timed, item[1])))
    if sum(map(timed, parts)) < LEAST_ROWS:
        return None
    model = fitted_to(measurements_of(parts), CostModel(parts[0].clusters[key], framework))
    rows_of = ", ".join(f"{part.name} ({timed(part)} timed rows)" for part in parts)
    return model, f"{rows_of} on {key}"


def written(model: CostModel, source: str) -> dict[str, Any]:
    """Entry of a framework on one machine: constants, and standard deviations of their logs."""
    return {
        "source": source,
        "machine": model.cluster.name,
        "log_sd": round(model.log_sd, 3),
        "tail_log_sd": round(model.tail_log_sd, 3),
        **_network(model.network),
        "time": _written(model.constants, model.covariance),
        "memory": _written(model.memory.constants, model.memory.covariance),
    }


def _network(seen: Network) -> dict[str, Any]:
    """Prior for the next network after runs on one; empty where all of them were calm.

    By the rule of succession, one network with congested runs makes the next one congest with two
    in three.
    """
    if seen.never > 0.5:
        return {}
    some = np.isfinite(seen.nodes)
    usual = np.exp(np.average(np.log(seen.nodes[some]), weights=seen.weights[some]))
    return {"network": {"never": 0.333, "nodes": float(f"{usual:.3g}")}}


def _written(constants: Constants, covariance: Array | None) -> dict[str, list[float]]:
    spreads = np.sqrt(np.diag(constants.covariance(covariance)))
    return {
        f.name: [float(f"{getattr(constants, f.name):.4g}"), float(f"{spread:.3g}")]
        for f, spread in zip(fields(constants), spreads, strict=True)
    }


def fitted_tables() -> dict[str, int]:
    """The tables that ``fitted.yaml`` was fitted to, and their numbers of rows."""
    return dict(yaml.safe_load(FILE.read_text())["tables"])


def _says_of_memory(tables: Sequence[Table], framework: str) -> bool:
    """Whether any row has a peak or failed. Runs alone say little: a table of times does not state
    what they recomputed."""
    return any(
        bool(((t.framework == framework) & (np.isfinite(t.peak_bytes) | t.failed)).any())
        for t in tables
    )


def thinned(table: Table) -> Table:
    """At most ``MOST_ROWS`` rows, evenly spread over the table."""
    step = -(-len(table) // MOST_ROWS)
    return table[::step]


def measurements_of(parts: list[Table]) -> Measurements:
    """All rows of tables from one machine."""
    return Measurements(
        joined([p.jobs for p in parts]),
        np.concatenate([p.step_time_s for p in parts]),
        np.concatenate([p.peak_bytes for p in parts]),
        np.concatenate([p.failed & ~not_memory(p) for p in parts]),
    )


def timed(table: Table) -> int:
    return int(np.isfinite(table.step_time_s).sum())


if __name__ == "__main__":
    main()
