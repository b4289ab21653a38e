"""Messages of srun and slurmstepd that explain an end, from ``texts.yaml``."""

from __future__ import annotations

from pathlib import Path

from slurm.outcome.texts import LauncherTexts, read_patterns

_PATTERNS = read_patterns(Path(__file__).with_suffix(".yaml"))
OVER, REFUSED, GAVE_UP = (_PATTERNS.pop(name) for name in ("over", "refused", "gave_up"))
SRUN_TEXTS = LauncherTexts(**_PATTERNS)
