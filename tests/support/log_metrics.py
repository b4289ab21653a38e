"""A trial's metrics from texts of its logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm.logs.patterns import LogFormat, read_logs


def metrics_of(
    log: LogFormat, texts: Sequence[str], warmup_steps: int = 0, num_gpus: int = 1
) -> Mapping[str, Any]:
    """The result of ``read_logs``, without the number of steps."""
    return read_logs(log, texts, warmup_steps, num_gpus)[0]
