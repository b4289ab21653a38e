"""Error messages of Open MPI and MPICH, and of agents, from ``texts.yaml``."""

from __future__ import annotations

from pathlib import Path

from slurm.outcome.texts import LauncherTexts, read_patterns

_PATTERNS = read_patterns(Path(__file__).with_suffix(".yaml"))
REFUSES_ROOT = _PATTERNS.pop("refuses_root")
MPIEXEC_TEXTS = LauncherTexts(**_PATTERNS)
