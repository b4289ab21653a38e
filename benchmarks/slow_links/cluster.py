"""A cluster of slow links on this machine, and training runs on it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.slow_links.cpu_share import CpuShares
from benchmarks.slow_links.network import INTERFACE, SlowNetwork
from benchmarks.slow_links.processes import ProcessError, Processes

_STEP = re.compile(r"step (\d+)/(\d+) ")
_PORT = 29500  # of the ranks' store, in the first node's own namespace: nobody else's
_BURN_S = 2.0


@dataclass(frozen=True)
class Run:
    """Results of one training run on the cluster.

    Attributes:
        step_times_s: of the measured steps.
        tflops_per_rank: model FLOPs; the median step.
        link_bytes_per_step: over the busiest link in its busier direction, headers included,
            as the kernel counted them.
        cpu_s_per_step: CPU time of one rank, the mean of all.
        result: all of the run's ``result.json``.
    """

    step_times_s: list[float]
    tflops_per_rank: float
    link_bytes_per_step: float
    cpu_s_per_step: float
    result: Mapping[str, Any]

    @property
    def step_time_s(self) -> float:
        return statistics.median(self.step_times_s)


class SlowCluster:
    """Nodes with rate-limited links, and ranks with a fixed share of the CPU.

    Args:
        num_nodes: nodes.
        ranks_per_node: ranks in each.
        rate_mbit_per_s: limit of every node's link, each way.
        cores_per_rank: CPU quota of a rank; None for no limit.
    """

    def __init__(
        self,
        num_nodes: int,
        ranks_per_node: int,
        rate_mbit_per_s: float,
        cores_per_rank: float | None,
    ) -> None:
        self.num_nodes = num_nodes
        self.ranks_per_node = ranks_per_node
        self.world_size = num_nodes * ranks_per_node
        self.network = SlowNetwork(num_nodes, rate_mbit_per_s)
        self.shares = None if cores_per_rank is None else CpuShares(self.world_size, cores_per_rank)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> SlowCluster:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="slow-links-"))
            self.folder = Path(folder)
            stack.enter_context(self.network)
            if self.shares is not None:
                stack.enter_context(self.shares)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def train(self, config: Mapping[str, Any], timeout_s: float) -> Run:
        """Train ``config`` (a ``TrainConfig``) on every rank of the cluster.

        The first step is not under the quota: it holds what is done only once.

        Raises:
            ProcessError: if a rank failed or time was up.
        """
        assert config["warmup_steps"] >= 2, "the first step runs without the quota"
        path = self.folder / "config.json"
        path.write_text(json.dumps(config))
        for old in self.folder.glob("*.log"):
            old.unlink()
        tasks = [self._rank(rank, path) for rank in range(self.world_size)]
        links: dict[int, list[int]] = {}
        cpu_s: dict[int, float] = {}
        with Processes(tasks, self.folder, timeout_s) as ranks:
            for line in ranks.lines():
                if match := _STEP.match(line):
                    step, steps = int(match[1]), int(match[2])
                    links[step] = [self.network.link_bytes(n) for n in range(self.num_nodes)]
                    cpu_s[step] = ranks.cpu_s() / self.world_size
                    if self.shares is not None and step == 1:
                        self.shares.limit(ranks.pids)
                    if self.shares is not None and step == steps:
                        self.shares.lift(ranks.pids)
            ranks.wait()
        result = json.loads((self.folder / "result.json").read_text())
        if result["status"] != "ok":
            raise ProcessError(f"{result['status']}: {result.get('message')}")
        first, last = config["warmup_steps"], max(links)
        carried = [after - before for before, after in zip(links[first], links[last], strict=True)]
        return Run(
            result["step_time_s"]["all"],
            result["tflops_per_gpu"],
            max(carried) / config["measured_steps"],
            (cpu_s[last] - cpu_s[first]) / config["measured_steps"],
            result,
        )

    def _rank(self, rank: int, path: Path) -> Callable[[], int]:
        node, local_rank = divmod(rank, self.ranks_per_node)
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_node),
            "MASTER_ADDR": self.network.address(0),
            "MASTER_PORT": str(_PORT),
            "GLOO_SOCKET_IFNAME": INTERFACE,
        }

        def run() -> int:
            self.network.enter(node)
            os.environ.update(variables)
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
            from trainer.__main__ import main

            return main([str(path)])

        return run

    def compute_speed(self) -> list[float]:
        """GFLOPS of every rank when all compute at once, under their quota, without a network."""
        reports = [self.folder / f"{rank}.speed" for rank in range(self.world_size)]

        def burn(rank: int) -> Callable[[], int]:
            def run() -> int:
                print("started", flush=True)
                reports[rank].write_text(str(_matmul_gflops(_BURN_S)))
                return 0

            return run

        tasks = [burn(rank) for rank in range(self.world_size)]
        with Processes(tasks, self.folder, timeout_s=60.0) as ranks:
            if self.shares is not None:
                self.shares.limit(ranks.pids)
            for _ in ranks.lines():
                pass
            ranks.wait()
        return [float(report.read_text()) for report in reports]


def _matmul_gflops(seconds: float) -> float:
    """Speed of this process at the trainer's kind of work; the first tenth is not counted."""
    import torch

    x, w = torch.randn(256, 512, dtype=torch.bfloat16), torch.randn(2048, 512, dtype=torch.bfloat16)
    flops_each = 2 * 256 * 512 * 2048
    begin = time.perf_counter()
    while time.perf_counter() < begin + seconds / 10:
        torch.nn.functional.linear(x, w)
    started, count = time.perf_counter(), 0
    while time.perf_counter() < begin + seconds:
        torch.nn.functional.linear(x, w)
        count += 1
    return count * flops_each / (time.perf_counter() - started) / 1e9


def preload() -> None:
    """Import what every rank needs, once, so that forks have it."""
    # One thread: a fork would lose the others, and a rank has a fraction of a core.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    import torch

    import trainer.__main__  # noqa: F401

    torch.set_num_threads(1)
