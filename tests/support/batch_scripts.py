"""Batch scripts of a small search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slurm.srun.batch import batch_script
from slurm.srun.site import Site


def script(run_dir: Path, **changes: Any) -> str:
    arguments: dict[str, Any] = {
        "space": "tiny_cpu", "run_dir": run_dir, "site": Site.load("generic"), "nodes": 2,
        "time": "00:10:00", "meshtune": "meshtune",
    }  # fmt: skip
    return batch_script(**{**arguments, **changes})
