"""The measurements: which cases run, in which order, and what is kept of each."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.slow_links.cluster import Run, SlowCluster
from benchmarks.slow_links.schemes import MODEL, train_config

LARGEST = 8
"""Nodes whose ranks together may use the whole allowance of CPU; fewer use so much less."""

_TIMEOUT_S = 600.0
_FAST_MBIT_PER_S = 10_000.0


@dataclass(frozen=True)
class Case:
    """One point: a scheme on a cluster.

    Attributes:
        scheme: a key of ``SCHEMES``.
        num_nodes: nodes.
        scarcity: r, see ``paper``; sets the links' rate.
        gas: micro-batches per step.
        ranks_per_node: ranks in each.
    """

    scheme: str
    num_nodes: int
    scarcity: float
    gas: int
    ranks_per_node: int = 2


@dataclass
class Samples:
    """All runs of one case, of which each repeat gives one."""

    case: Case
    rate_mbit_per_s: float
    runs: list[Run] = field(default_factory=list)

    @property
    def step_times_s(self) -> list[float]:
        return [time for run in self.runs for time in run.step_times_s]

    @property
    def step_time_s(self) -> float:
        return statistics.median(self.step_times_s)

    @property
    def tflops_per_rank(self) -> float:
        return statistics.median(run.tflops_per_rank for run in self.runs)

    @property
    def link_bytes_per_step(self) -> float:
        return statistics.median(run.link_bytes_per_step for run in self.runs)

    @property
    def cpu_s_per_step(self) -> float:
        return statistics.median(run.cpu_s_per_step for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self.case),
            "rate_mbit_per_s": self.rate_mbit_per_s,
            "step_time_s": {"median": self.step_time_s, "all": self.step_times_s},
            "tflops_per_rank": self.tflops_per_rank,
            "link_bytes_per_step": self.link_bytes_per_step,
            "cpu_s_per_step": self.cpu_s_per_step,
            "losses": self.runs[0].result["loss"],
            "communication": self.runs[0].result.get("communication"),
        }


class Bench:
    """Runs cases on clusters of this machine, and keeps what they gave.

    Args:
        data: prefix of the token file.
        cores_per_rank: CPU quota; None for none.
        say: called with each line of progress.
    """

    def __init__(
        self, data: Path, cores_per_rank: float | None, say: Callable[[str], None]
    ) -> None:
        self.data = data
        self.cores_per_rank = cores_per_rank
        self.say = say
        self.micro_batch_s = 0.0
        self.samples: dict[Case, Samples] = {}

    @property
    def weight_bits(self) -> float:
        """Bits of the model's weights, two bytes each."""
        return 16.0 * MODEL.num_parameters

    def cluster(self, num_nodes: int, ranks_per_node: int, rate_mbit_per_s: float) -> SlowCluster:
        return SlowCluster(num_nodes, ranks_per_node, rate_mbit_per_s, self.cores_per_rank)

    def calibrate(self, gas: int = 8) -> float:
        """Learn the seconds of a rank's own work on one micro-batch: ZeRO-topo inside one node."""
        with self.cluster(1, 2, _FAST_MBIT_PER_S) as cluster:
            config = train_config("ZeRO-topo", self.data, gas, 2, measured_steps=3)
            run = cluster.train(config, _TIMEOUT_S)
        self.micro_batch_s = run.step_time_s / gas
        return self.micro_batch_s

    def rate(self, scarcity: float) -> float:
        """Mbit/s of a link that carries the weights once in ``scarcity`` micro-batches' work."""
        return self.weight_bits / (scarcity * self.micro_batch_s) / 1e6

    def run(self, cases: Sequence[Case], repeats: int, measured_steps: int) -> None:
        """Run all cases, then all again: what drifts on the machine then hits all alike."""
        for repeat in range(repeats):
            for case in cases:
                samples = self.samples.setdefault(case, Samples(case, self.rate(case.scarcity)))
                if len(samples.runs) > repeat:
                    continue  # another table has asked for it already
                samples.runs.append(self._run(samples, measured_steps))

    def _run(self, samples: Samples, measured_steps: int) -> Run:
        case = samples.case
        with self.cluster(case.num_nodes, case.ranks_per_node, samples.rate_mbit_per_s) as cluster:
            config = train_config(
                case.scheme, self.data, case.gas, case.ranks_per_node, measured_steps
            )
            run = cluster.train(config, _TIMEOUT_S)
            dropped = cluster.network.dropped_packets()
        self.say(
            f"{case.scheme}: {case.num_nodes} nodes x {case.ranks_per_node}, "
            f"{samples.rate_mbit_per_s:.0f} Mbit/s (r {case.scarcity:.2f}), gas {case.gas}: "
            f"{run.step_time_s:.2f} s a step" + (f", {dropped} packets dropped" if dropped else "")
        )
        return run


@dataclass(frozen=True)
class Plan:
    """The measurements, in the order of the report.

    Attributes:
        nodes: cluster sizes.
        scarcities: r of the papers, the one of the main table first.
        curve: r of the curve over link speeds.
        gas: micro-batches per step in the main table.
        gas_curve: and those that are compared with each other.
        repeats: of the main table; the curves run once.
        measured_steps: of each run.
    """

    nodes: tuple[int, ...]
    scarcities: tuple[float, ...]
    curve: tuple[float, ...]
    gas: int
    gas_curve: tuple[int, ...]
    repeats: int
    measured_steps: int

    MAIN = ("ZeRO-3", "ZeRO++", "ZeRO-topo")
    HPZ = ("qgZ", "qgZ + hpZ")
    KEPT = ("ZeRO++, copy kept", "qgZ + hpZ, copy kept")
    CURVE_GAS = 2
    WIDE_NODES = 2
    WIDE_RANKS = 4

    def main(self) -> list[Case]:
        """The paper's three, for every cluster size."""
        first = self.scarcities[0]
        return [Case(s, n, first, self.gas) for n in self.nodes for s in self.MAIN]

    def others(self) -> list[Case]:
        """The same on the largest cluster for the other estimates of r; hpZ; a kept copy."""
        n, first = max(self.nodes), self.scarcities[0]
        return [
            *(Case(s, n, r, self.gas) for r in self.scarcities[1:] for s in self.MAIN),
            *(Case(s, n, first, self.gas) for s in (*self.HPZ, *self.KEPT)),
        ]

    def wide(self) -> list[Case]:
        """Pairs inside of nodes: two nodes of four ranks."""
        first = self.scarcities[0]
        return [Case(s, self.WIDE_NODES, first, self.gas, self.WIDE_RANKS) for s in self.MAIN]

    def over_rates(self) -> list[Case]:
        n = sorted(self.nodes)[len(self.nodes) // 2]
        return [Case(s, n, r, self.CURVE_GAS) for r in self.curve for s in self.MAIN]

    def over_gas(self) -> list[Case]:
        n = sorted(self.nodes)[len(self.nodes) // 2]
        return [Case(s, n, self.scarcities[0], g) for g in self.gas_curve for s in self.MAIN]
