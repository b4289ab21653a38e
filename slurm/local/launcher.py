"""Trials as processes of this machine, with the launcher interface that Slurm has."""

from __future__ import annotations

import glob
import os
import shlex
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foundation.python import module_arguments
from foundation.writing import write_private
from slurm import processes
from slurm.agents import FAILURE_GRACE_S
from slurm.forked_rank import read_at_start
from slurm.launcher import Launcher, LauncherError, LauncherOptions
from slurm.local.server import ForkServer, Ranks, marker
from slurm.outcome.classify import Outcome, classify
from slurm.outcome.evidence import clear_attempt
from slurm.outcome.kinds import Kind
from slurm.outcome.step_log import StopRule
from slurm.trial import TRIAL_VARIABLE, Lease, TrialSpec, rank_environment, rendezvous_environment

_GONE_S = 30.0  # SIGKILL acts at once, unless a process is stuck in the kernel

_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class LocalLauncher(Launcher):
    """Runs trials on this machine, cut into equal nodes: ``local0``, ``local1`` and so on.

    Args:
        num_nodes: trials that can run at once. Each node has an equal share of the GPUs, which its
            ranks see; all share CPU cores and memory.
        preload: module that is imported once, so that commands that run it start fast.
        failure_grace_s: how long the other ranks of a trial may run on after one has failed.

    Raises LauncherError if this is not Linux, or there are no nodes.
    """

    name = "local"

    def __init__(
        self, num_nodes: int = 1, preload: str = "trainer", failure_grace_s: float = FAILURE_GRACE_S
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise LauncherError(
                "the local launcher needs Linux, whose kernel can end all of a trial"
            )
        if num_nodes < 1:
            raise LauncherError(f"num_nodes is {num_nodes}; it must be at least 1")
        self.max_concurrent = num_nodes
        self._nodes = tuple(f"local{i}" for i in range(num_nodes))
        self._gpu_variable, gpus = visible_gpus(os.environ)
        share = len(gpus) // num_nodes
        self._gpus = {node: gpus[i * share : (i + 1) * share] for i, node in enumerate(self._nodes)}
        self._server = ForkServer(preload, failure_grace_s)

    @classmethod
    def from_options(cls, options: LauncherOptions) -> LocalLauncher:
        return cls(options.num_nodes)

    def nodes(self) -> Sequence[str]:
        return self._nodes

    def gpus_per_node(self) -> int:
        return len(self._gpus[self._nodes[0]])

    def command(self, spec: TrialSpec, lease: Lease) -> list[str]:
        return list(spec.argv)

    def run(
        self,
        spec: TrialSpec,
        lease: Lease,
        stop: threading.Event,
        stop_rule: StopRule | None = None,
    ) -> Outcome:
        clear_attempt(spec.directory)
        order = self._order(spec, lease)
        self._write_command(spec, lease, order)
        if problem := _cannot_start(spec, order["env"]):
            return Outcome(Kind.LAUNCH_FAILURE, message=problem)
        ranks = self._server.start(spec, lease, order)
        try:
            watched = ranks.watch(stop, stop_rule)
            gone = self._end(spec, ranks)
        finally:
            ranks.finish()
        if not (ranks.channel.over or ranks.channel.greeted):
            message = "the fork server was killed before it had started the ranks"
            return Outcome(Kind.LAUNCH_FAILURE, message=message)
        return classify(ranks.evidence(watched, stuck_nodes=() if gone else lease.nodes))

    def settle(self, names: Iterable[str]) -> None:
        wanted = set(names)
        markers = {marker(name) for name in wanted}

        def find() -> set[int]:
            forked = {
                pid
                for pid in processes.all_pids()
                if pid != os.getpid() and markers & processes.open_files(pid)
            }
            started = processes.with_environ(lambda env: env.get(TRIAL_VARIABLE) in wanted)
            return {pid for pid in forked | started if processes.is_running(pid)}

        if left := processes.end_all(find, deadline_s=_GONE_S):
            raise LauncherError(f"processes {sorted(left)} of earlier trials do not end")

    def close(self) -> None:
        self._server.close()

    def _order(self, spec: TrialSpec, lease: Lease) -> dict[str, Any]:
        preloaded = module_arguments(spec.argv, self._server.preload) is not None
        return {
            "clear": True,
            "env": self._env(spec),
            "ranks": self._rank_env(spec, lease),
            "memory_bytes": spec.memory_bytes_per_rank,
            "forked": preloaded and not read_at_start(spec.env),
        }

    def _env(self, spec: TrialSpec) -> dict[str, str]:
        # By Slurm's variables a trainer would mistake the driver's job for its own.
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SRUN"))}
        ranks = len(self._nodes) * spec.ranks_per_node
        threads = spec.cpus_per_rank or max(1, len(os.sched_getaffinity(0)) // ranks)
        env["OMP_NUM_THREADS"] = str(threads)
        env["PYTHONUNBUFFERED"] = "1"  # progress is seen by the growth of the logs
        # On loopback no other host can connect to the ranks, and the host's name need not resolve.
        env["GLOO_SOCKET_IFNAME"] = env["NCCL_SOCKET_IFNAME"] = "lo"
        return {**env, **spec.env}

    def _rank_env(self, spec: TrialSpec, lease: Lease) -> list[dict[str, str]]:
        common = rendezvous_environment(spec, "127.0.0.1", _free_port())
        envs = []
        for i, node in enumerate(lease.nodes):
            gpus = {self._gpu_variable: ",".join(self._gpus[node])} if self._gpu_variable else {}
            for local_rank in range(spec.ranks_per_node):
                rank = i * spec.ranks_per_node + local_rank
                envs.append(common | gpus | rank_environment(rank, local_rank, i))
        return envs

    def _write_command(self, spec: TrialSpec, lease: Lease, order: Mapping[str, Any]) -> None:
        variables = {**spec.env, **order["ranks"][0]}
        env = [f"{key}={shlex.quote(value)}" for key, value in sorted(variables.items())]
        write_private(
            spec.directory / "command.txt",
            f"# rank 0 of {spec.world_size}, on {','.join(lease.nodes)}\n"
            f"cd {shlex.quote(str(spec.started_in))}\n"
            f"{' '.join(env)} {shlex.join(self.command(spec, lease))}\n",
        )

    def _end(self, spec: TrialSpec, ranks: Ranks) -> bool:
        """Kill the remaining processes of a trial; returns whether they are gone."""
        if not ranks.channel.over:
            ranks.end_ranks(signal.SIGKILL, _GONE_S)
        if ranks.channel.all_gone:
            return True
        if ranks.channel.void or not ranks.alive:  # the agent was killed or stopped
            self.settle([spec.name])
            return True
        return False


def visible_gpus(env: Mapping[str, str]) -> tuple[str | None, list[str]]:
    """The variable that selects among this machine's GPUs (None without GPUs), and its values."""
    for variable in _GPU_VARIABLES:
        if variable in env:
            return variable, [item for item in env[variable].split(",") if item]
    nvidia = glob.glob("/dev/nvidia[0-9]*")  # noqa: PTH207 - Path.glob is no simpler
    if nvidia:
        return "CUDA_VISIBLE_DEVICES", [str(i) for i in range(len(nvidia))]
    amd = [
        path
        for path in Path("/sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
        if path.read_text().strip() != "0"  # 0: a CPU
    ]
    return ("ROCR_VISIBLE_DEVICES", [str(i) for i in range(len(amd))]) if amd else (None, [])


def _cannot_start(spec: TrialSpec, env: Mapping[str, str]) -> str | None:
    program = spec.argv[0]
    if spec.obstacle:
        return spec.obstacle
    where = spec.started_in / program if os.sep in program else program
    if shutil.which(where, path=env.get("PATH")) is None:
        why = " that is executable: chmod +x it" if Path(where).is_file() else ""
        return f"cannot start {program!r}: no such program{why}"
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
