"""A simulated cluster without troubles, and trials whose costs stand in their configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm.outcome.step_log import StepReport
from slurm.simulated.trial import Price, SimulatedCluster

GIB = 2**30
CALM = SimulatedCluster(
    nodes=8,
    noise=0.0,
    node_noise=0.0,
    crash=0.0,
    hang=0.0,
    launch_failure=0.0,
    node_failures_per_day=0.0,
)


@dataclass
class Work:
    """Step time and memory are in the configuration itself."""

    warmup_steps: int = 2
    measured_steps: int = 5
    memory_bytes: int = 64 * GIB

    def price(self, config: Mapping[str, Any]) -> Price:
        need = config.get("needed_bytes", 9 * GIB)
        return Price(config.get("step_s", 2.0), need, 8 * GIB, config.get("refused", False))

    def figures(
        self, config: Mapping[str, Any], step_times_s: Sequence[float], peak_bytes: float
    ) -> dict[str, Any]:
        return {"status": "ok", "steps_s": list(step_times_s), "peak_memory_bytes": peak_bytes}

    def step(self, config: Mapping[str, Any], number: int, step_time_s: float) -> StepReport:
        return {"step": number, "step_time_s": step_time_s}
