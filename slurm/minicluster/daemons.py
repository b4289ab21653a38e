"""The daemons of a minicluster: their ports, how they start, and how all are ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from slurm import processes
from slurm.minicluster.config import MAX_NODES, MiniclusterConfig, MiniclusterError, runtime_folder

PROGRAMS = ("slurmctld", "slurmd", "srun", "sinfo", "squeue", "scancel", "munged")
LOOPBACK, LOOPBACK_NAME = "127.0.0.1", "localhost"
# A program started by these words, and its descendants, see that name as the machine's.
_OWN_NAME = ("unshare", "--uts", "sh", "-c", f'hostname {LOOPBACK_NAME} && exec "$@"', "sh")
_PORT_STEP = MAX_NODES + 1  # ports set aside for one cluster
_FIRST_PORT, _LAST_PORT = 17000, 26900  # below the kernel's ephemeral ports


def missing(programs: Sequence[str] = PROGRAMS) -> str | None:
    """Why a minicluster cannot run on this machine, with the remedy; None if it can."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    absent = [program for program in programs if shutil.which(program, path=path) is None]
    if absent:
        return (
            f"{', '.join(absent)} not found; on Debian or Ubuntu: "
            "apt-get install slurmctld slurmd slurm-client munge"
        )
    if os.geteuid() != 0:
        return "slurmd needs root to start steps and limit their memory; run as root (sudo)"
    return None


def cgroup_version() -> Literal["v1", "v2"] | None:
    """Version of the cgroups that can limit memory here, if any."""
    root = Path("/sys/fs/cgroup")
    controllers = root / "cgroup.controllers"
    if controllers.exists():
        return "v2" if "memory" in controllers.read_text().split() else None
    if all(os.access(root / name, os.W_OK) for name in ("memory", "freezer", "cpuacct")):
        return "v1"
    return None


@contextlib.contextmanager
def machine_lock() -> Iterator[None]:
    """Allow one start or stop at a time, lest two clusters take the same ports."""
    path = runtime_folder() / "minicluster.lock"
    lock = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def names_loopback(hostname: str) -> bool:
    """Whether this name resolves to 127.0.0.1."""
    try:
        return socket.gethostbyname(hostname) == LOOPBACK
    except OSError:
        return False


def can_have_own_name() -> bool:
    """Whether daemons can have a UTS namespace of their own; some containers forbid it."""
    try:
        done = subprocess.run([*_OWN_NAME, "true"], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def place(config: MiniclusterConfig) -> MiniclusterConfig:
    """The config with the first free block of ports, and node names that no cgroup has yet."""
    for index, base in enumerate(range(_FIRST_PORT, _LAST_PORT, _PORT_STEP)):
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
    start_daemon(config, "slurmd", "-f", str(config.daemons_conf), "-N", name)


def environment(conf: Path) -> dict[str, str]:
    """Our environment, with a cluster's configuration for Slurm's programs."""
    # This process may be in another Slurm's job: none of its settings may leak in.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SLURMD_", "SRUN_"))}
    path = os.pathsep.join((env.get("PATH", ""), "/usr/sbin", "/sbin"))
    return env | {"SLURM_CONF": str(conf), "PATH": path}


def start_daemon(config: MiniclusterConfig, *argv: str) -> None:
    """Run a program that goes to the background by itself.

    Raises MiniclusterError if it fails; the message ends with its last output.
    """
    log = Path(config.directory) / "log" / "start.log"
    with log.open("a") as out:  # a file: the daemon keeps its output open, and so a pipe
        env = environment(config.daemons_conf)
        program = shutil.which(argv[0], path=env["PATH"]) or argv[0]
        prefix = _OWN_NAME if config.own_name else ()
        done = subprocess.run(
            [*prefix, program, *argv[1:]], env=env, stdin=subprocess.DEVNULL, stdout=out,
            stderr=out, check=False,
        )  # fmt: skip
    if done.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
        raise MiniclusterError(f"{argv[0]} does not start: {tail}")


def _daemons(config: MiniclusterConfig, log: str, *names: str) -> set[int]:
    """Running daemons of this cluster, recognized by the log file that they hold open.

    A step daemon rewrites its command line and environment, but keeps its log file.
    """
    path = f"{config.directory}/log/{log}"
    return {
        pid
        for pid in processes.all_pids()
        if processes.name(pid) in names and path in processes.open_files(pid)
    }


def controller(config: MiniclusterConfig) -> set[int]:
    return _daemons(config, "slurmctld.log", "slurmctld")


def node_processes(config: MiniclusterConfig, name: str) -> set[int]:
    """Processes of a node: slurmd, step daemons and ranks."""

    def on_node(env: dict[str, str]) -> bool:
        conf = str(config.daemons_conf)
        return env.get("SLURM_CONF") == conf and env.get("SLURMD_NODENAME") == name

    return _daemons(config, f"{name}.log", "slurmd", "slurmstepd") | processes.with_environ(on_node)


def stop(config: MiniclusterConfig) -> None:
    """End every process of the cluster, steps and ranks too, and remove its cgroups.

    Raises MiniclusterError if a process cannot be ended.
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
        with contextlib.suppress(OSError):  # busy: it has a foreign process
            Path(folder).rmdir()
