"""Fits each framework's constants to its tables of one machine; writes analysis/cost/fitted.yaml.

    python -m benchmarks.cost_model.fit [--truth FOLDER]

The accuracy benchmark never reads that file: its folds start from the priors.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import numpy as np
import yaml

from analysis.cost.fitted import FILE, written
from analysis.cost.jobs import Jobs
from analysis.cost.model import CostModel, Evidence
from analysis.cost.profiles import PROFILES
from analysis.sweeps.table import Table
from analysis.sweeps.tables import read

LEAST_ROWS = 50  # timed ones, from which on a fit says more than the priors
MOST_ROWS = 400  # of one table, so that none drowns the others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truth", type=Path, default=Path("../shared/truth"))
    truth = parser.parse_args().truth
    tables = [table for path in sorted(truth.glob("*.csv")) if (table := read(path))]
    content = {}
    for name, profile in PROFILES.items():
        by_machine: dict[str, list[Table]] = {}
        for part in (part for table in tables for part in parts_of(table, name)):
            by_machine.setdefault(str(part.machine[0]), []).append(thinned(part))
        found = max(by_machine.items(), key=lambda item: sum(map(timed, item[1])), default=None)
        if found is None or sum(map(timed, found[1])) < LEAST_ROWS:
            continue
        key, parts = found
        machine = parts[0].machines[key]
        model = CostModel(machine, profile).calibrated(evidence_of(parts))
        rows = ", ".join(f"{part.name} ({timed(part)} timed rows)" for part in parts)
        content[name] = written(model, f"{rows} on {machine.name}")
        print(f"{name}: {content[name]['source']}, spread {content[name]['log_sd']}")
    head = (
        "# Written by python -m benchmarks.cost_model.fit: value, and deviation of its logarithm.\n"
    )
    FILE.write_text(head + yaml.safe_dump(content, sort_keys=False, default_flow_style=None))


def parts_of(table: Table, profile: str) -> list[Table]:
    """A framework's rows of a table, by machine."""
    rows = table.profile == profile
    return [table[rows & (table.machine == key)] for key in np.unique(table.machine[rows])]


def thinned(table: Table) -> Table:
    """At most so many rows, evenly spread over the table."""
    step = -(-len(table) // MOST_ROWS)
    return table[::step]


def evidence_of(parts: list[Table]) -> Evidence:
    """All rows of tables from one machine."""
    jobs = Jobs(
        **{f.name: np.concatenate([getattr(p.jobs, f.name) for p in parts]) for f in fields(Jobs)}
    )
    return Evidence(
        jobs,
        np.concatenate([p.step_time_s for p in parts]),
        np.concatenate([p.peak_bytes for p in parts]),
        np.concatenate([p.failed & ~p.not_memory for p in parts]),
    )


def timed(table: Table) -> int:
    return int(np.isfinite(table.step_time_s).sum())


if __name__ == "__main__":
    main()
