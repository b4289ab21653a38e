"""The daemons of a minicluster: where they fit on the machine, their start, and their sure end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from slurm import processes
from slurm.launcher import LauncherError
from slurm.minicluster.config import MiniclusterConfig

PORT_STEP = 100  # ports set aside for one cluster
_FIRST_PORT, _LAST_PORT = 17000, 26900  # below the kernel's ephemeral ports


class MiniclusterError(LauncherError):
    """The minicluster cannot be started or found; the message names the remedy."""


def cgroup_version() -> str | None:
    """Which cgroups can limit memory here, if any."""
    root = Path("/sys/fs/cgroup")
    controllers = root / "cgroup.controllers"
    if controllers.exists():
        return "v2" if "memory" in controllers.read_text().split() else None
    if all(os.access(root / name, os.W_OK) for name in ("memory", "freezer", "cpuacct")):
        return "v1"
    return None


@contextlib.contextmanager
def machine_lock() -> Iterator[None]:
    """One start at a time, lest two clusters take the same ports."""
    path = Path(tempfile.gettempdir()) / f"meshtune-minicluster-{os.geteuid()}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def place(config: MiniclusterConfig) -> MiniclusterConfig:
    """The first block of free ports, with node names that no other cluster's cgroups bear."""
    for index, base in enumerate(range(_FIRST_PORT, _LAST_PORT, PORT_STEP)):
        prefix = "n" if index == 0 else f"m{index}n"
        placed = replace(config, node_prefix=prefix, base_port=base)
        taken = any(
            Path("/sys/fs/cgroup/memory", f"slurm_{name}").exists() for name in placed.nodes
        )
        if not taken and all(map(_port_is_free, placed.ports())):
            return placed
    raise MiniclusterError(f"no {config.num_nodes + 1} free ports from {_FIRST_PORT} on")


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def start_munged(config: MiniclusterConfig) -> None:
    """Start the cluster's own munge daemon; its key is in the folder."""
    folder = config.directory
    start_daemon(
        config, "munged", "--force", f"--socket={config.munge_socket}",
        f"--key-file={folder}/munge.key", f"--pid-file={folder}/munged.pid",
        f"--log-file={folder}/log/munged.log", f"--seed-file={folder}/munge.seed",
    )  # fmt: skip


def start_slurmd(config: MiniclusterConfig, name: str) -> None:
    """Start the daemon of one node."""
    start_daemon(config, "slurmd", "-f", str(config.conf), "-N", name)


def environment(config: MiniclusterConfig) -> dict[str, str]:
    """Ours, with this cluster for Slurm's commands."""
    # What surrounds us may be another Slurm's job: none of its settings may leak in.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SLURMD_", "SRUN_"))}
    path = os.pathsep.join((env.get("PATH", ""), "/usr/sbin", "/sbin"))
    return env | {"SLURM_CONF": str(config.conf), "PATH": path}


def start_daemon(config: MiniclusterConfig, *argv: str) -> None:
    """Run a program that goes to the background by itself.

    Raises:
        MiniclusterError: if it reports a failure; the message has its last words.
    """
    log = Path(config.directory) / "log" / "start.log"
    with log.open("a") as out:  # a file, as the daemon keeps it open and would hold a pipe
        env = environment(config)
        program = shutil.which(argv[0], path=env["PATH"]) or argv[0]
        done = subprocess.run(
            [program, *argv[1:]], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            check=False,
        )  # fmt: skip
    if done.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
        raise MiniclusterError(f"{argv[0]} does not start: {tail}")


def _daemons(config: MiniclusterConfig, log: str, *names: str) -> set[int]:
    """Running daemons of this cluster, told by the log file that they hold open.

    A step daemon rewrites its command line and environment; its log file stays.
    """
    path = f"{config.directory}/log/{log}"
    return {
        pid
        for pid in processes.all_pids()
        if processes.name(pid) in names and path in processes.open_files(pid)
    }


def controller(config: MiniclusterConfig) -> set[int]:
    """The running slurmctld."""
    return _daemons(config, "slurmctld.log", "slurmctld")


def node_processes(config: MiniclusterConfig, name: str) -> set[int]:
    """slurmd, the step daemons and every rank of a node."""

    def on_node(env: dict[str, str]) -> bool:
        return env.get("SLURM_CONF") == str(config.conf) and env.get("SLURMD_NODENAME") == name

    return _daemons(config, f"{name}.log", "slurmd", "slurmstepd") | processes.with_environ(on_node)


def stop(config: MiniclusterConfig) -> None:
    """End every process of the cluster, steps and ranks too, and remove its cgroups.

    Raises:
        MiniclusterError: if a process cannot be ended.
    """

    def all_nodes() -> set[int]:
        return set().union(*(node_processes(config, name) for name in config.nodes))

    def services() -> set[int]:
        return controller(config) | _daemons(config, "munged.log", "munged")

    for find in (all_nodes, services):
        if left := processes.end_all(find):
            raise MiniclusterError(f"{config.directory}: processes {sorted(left)} do not die")
    for name in config.nodes:
        for cgroup in Path("/sys/fs/cgroup").glob(f"*/slurm_{name}"):
            _remove_cgroup(cgroup)


def _remove_cgroup(path: Path) -> None:
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):  # busy: a foreign process was put there
            Path(folder).rmdir()
