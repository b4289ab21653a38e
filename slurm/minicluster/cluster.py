"""A real Slurm on one Linux machine, for tests and for trying things.

``up`` starts a munge daemon, a controller and one ``slurmd`` per fake node, all with their own
folder, sockets and ports, so that no other Slurm or munge on the machine is touched. It is not
meant for production: every node is this machine, and its GPUs are /dev/null.
"""

from __future__ import annotations

import contextlib
import getpass
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from foundation.messages import shown
from foundation.quantities import counted
from slurm.minicluster import config as miniconf, daemons
from slurm.minicluster.config import MAX_GPUS, MAX_NODES, MiniclusterConfig, MiniclusterError
from slurm.minicluster.daemons import missing

START_S = 30.0
_REACHABLE = (
    "the daemons listen on every network of this machine, as its name is not that of 127.0.0.1 "
    "and this container forbids to give them another: put the name beside 127.0.0.1 in /etc/hosts"
)
_NO_LIMITS = "memory is not limited: no cgroups that Slurm can use on this machine"


@dataclass(frozen=True)
class Minicluster:
    config: MiniclusterConfig
    notice: str = ""  # limitations on this machine, and their reasons
    started: bool = True  # False if it was already up

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.config.nodes

    @property
    def conf(self) -> Path:
        """The value of ``SLURM_CONF`` for users."""
        return self.config.conf

    @property
    def export_line(self) -> str:
        """The shell command that selects this cluster."""
        return f"export SLURM_CONF={self.conf}"

    def run(self, *argv: str, timeout_s: float = 30.0) -> str:
        """Standard output of a Slurm command on this cluster.

        Raises MiniclusterError if it fails; the message holds its standard error.
        """
        try:
            done = subprocess.run(
                argv, env=daemons.environment(self.config.conf), capture_output=True, text=True,
                timeout=timeout_s, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise MiniclusterError(f"{' '.join(argv)}: no answer in {timeout_s:g} s") from error
        if done.returncode:
            raise MiniclusterError(f"{' '.join(argv)}: {done.stderr.strip()}")
        return done.stdout

    def node_states(self) -> dict[str, str]:
        """State of each node as ``sinfo`` gives it: ``idle``, ``allocated``, ``down*`` ..."""
        lines = self.run("sinfo", "-hN", "-o", "%N %T").splitlines()
        pairs = (line.split() for line in lines)
        return dict(sorted(pairs, key=lambda pair: (len(pair[0]), pair[0])))  # node10 after node9


@dataclass(frozen=True)
class Status:
    cluster: Minicluster
    node_states: dict[str, str]
    jobs: tuple[str, ...]  # squeue's lines

    def __str__(self) -> str:
        config = self.cluster.config
        lines = [
            f"minicluster in {config.directory}: {counted(config.num_nodes, 'node')}, "
            f"{counted(config.gpus_per_node, 'GPU')} and {config.mem_per_node_mib} MiB each, "
            f"memory limits {'by cgroup ' + config.cgroup if config.cgroup else 'off'}",
            *(f"  {name:8} {state}" for name, state in self.node_states.items()),
            *(self.jobs or ("no jobs",)),
            self.cluster.export_line,
        ]
        return "\n".join(lines)


def up(
    directory: Path | None = None,
    num_nodes: int = 8,
    gpus_per_node: int = 2,
    mem_per_node: str = "2G",
    start_s: float = START_S,
) -> Minicluster:
    """Start a minicluster, or find it running.

    Args:
        directory: must not exist or be empty. Default: ``default_directory()``.
        num_nodes: at most ``MAX_NODES``.
        gpus_per_node: fake ones, at most ``MAX_GPUS``.
        mem_per_node: ``2G`` or ``1500M``. The sum may exceed the machine's memory.
        start_s: how long the nodes may take to come up.

    Raises MiniclusterError if the machine lacks something, or the arguments make no sense.
    """
    directory = (directory or miniconf.default_directory()).absolute()
    if reason := missing():
        raise MiniclusterError(f"cannot start a minicluster: {reason}")
    if not 1 <= num_nodes <= MAX_NODES or not 0 <= gpus_per_node <= MAX_GPUS:
        raise MiniclusterError(f"--nodes must be 1 to {MAX_NODES}, --gpus-per-node 0 to {MAX_GPUS}")
    hostname = socket.gethostname()
    own_name = daemons.can_have_own_name()
    config = MiniclusterConfig(
        directory=str(directory),
        hostname=daemons.LOOPBACK_NAME if own_name else hostname.split(".")[0],
        user=getpass.getuser(), node_prefix="", num_nodes=num_nodes, gpus_per_node=gpus_per_node,
        mem_per_node_mib=_parse_memory_mib(mem_per_node), base_port=0,
        cgroup=daemons.cgroup_version(), own_name=own_name,
        clients_on_loopback=daemons.names_loopback(hostname),
    )  # fmt: skip
    with daemons.machine_lock():
        if (running := _find(directory)) is not None:
            return replace(running, started=False)
        _make_folder(config)
        config = daemons.place(config)
        if config.cgroup is None:
            return _start(config, start_s, _NO_LIMITS)
        try:
            return _start(config, start_s)
        except MiniclusterError as error:
            # Mounted cgroups may be unusable, in a container for example.
            return _start(replace(config, cgroup=None), START_S, f"{_NO_LIMITS} ({error})")


def down(directory: Path | None = None) -> bool:
    """Stop the minicluster in ``directory`` and remove the folder; False if there was none."""
    directory = (directory or miniconf.default_directory()).absolute()
    with daemons.machine_lock():  # two may stop it at once
        config = miniconf.read_config(directory)
        if config is None:
            return False
        cluster = Minicluster(config)
        with contextlib.suppress(MiniclusterError):
            cluster.run("scancel", f"--user={config.user}", timeout_s=5.0)
            _wait(lambda: not cluster.run("squeue", "-h", timeout_s=5.0), "jobs left", 5.0)
        daemons.stop(config)
        shutil.rmtree(directory)
        return True


def status(directory: Path | None = None) -> Status | None:
    """State of the minicluster in ``directory``; None if none is up."""
    cluster = _find((directory or miniconf.default_directory()).absolute())
    if cluster is None:
        return None
    jobs = cluster.run("squeue", "-o", "%i %j %T %M %D %N").splitlines()
    return Status(cluster, cluster.node_states(), tuple(jobs[1:]) and tuple(jobs))


def _find(directory: Path) -> Minicluster | None:
    config = miniconf.read_config(directory)
    if config is None or not daemons.controller(config):
        return None
    return Minicluster(config)


def _parse_memory_mib(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9})([MG])(i?B)?", text.strip(), re.IGNORECASE)
    if match is None or int(match[1]) == 0:
        raise MiniclusterError(f"--mem-per-node {shown(text)!r}: write it as 2G or 1500M")
    return int(match[1]) * (1024 if match[2] in "gG" else 1)


def _make_folder(config: MiniclusterConfig) -> None:
    directory = Path(config.directory)
    stale = miniconf.read_config(directory)
    if stale is not None:  # its controller is gone: after a reboot, or killed
        daemons.stop(stale)
        shutil.rmtree(directory)
    if directory.exists() and any(directory.iterdir()):
        raise MiniclusterError(f"{directory} is not empty, and no minicluster; choose another")
    miniconf.check_name(config)
    miniconf.make_private(directory)
    miniconf.write_config(config)  # first of all: it marks the folder as ours to remove
    for sub in ("log", "spool", "state"):
        (directory / sub).mkdir()
    for i in range(config.gpus_per_node):
        (directory / f"nvidia{i}").symlink_to("/dev/null")  # slurmd wants a device
    key = directory / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))


def _start(config: MiniclusterConfig, start_s: float, *notices: str) -> Minicluster:
    """Start all daemons and run a step on every node; stop them if that fails."""
    directory = Path(config.directory)
    miniconf.write_config(config)
    config.conf.write_text(miniconf.slurm_conf(config, config.clients_on_loopback))
    config.daemons_conf.write_text(miniconf.slurm_conf(config, config.daemons_on_loopback))
    (directory / "cgroup.conf").write_text(miniconf.cgroup_conf(config))
    (directory / "gres.conf").write_text(miniconf.gres_conf(config))
    if not config.daemons_on_loopback:
        notices = (*notices, _REACHABLE)
    cluster = Minicluster(config, "\n".join(notices))
    try:
        daemons.start_munged(config)
        # -c: without the saved state of an earlier controller.
        daemons.start_daemon(config, "slurmctld", "-c", "-f", str(config.daemons_conf))
        for name in config.nodes:
            daemons.start_slurmd(config, name)
        _wait(lambda: _all_idle(cluster), f"the nodes do not come up; see {directory}/log", start_s)
        # A node whose cgroups do not work is idle, too; only a step shows it.
        cluster.run("srun", f"-N{config.num_nodes}", "-t1", "--mem=10M", "true")
    except MiniclusterError:
        daemons.stop(config)
        raise
    return cluster


def _all_idle(cluster: Minicluster) -> bool:
    try:
        states = cluster.node_states()
    except MiniclusterError:
        return False  # the controller is not listening yet
    return len(states) == len(cluster.nodes) and set(states.values()) == {"idle"}


def _wait(condition: Callable[[], bool], otherwise: str, deadline_s: float = START_S) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise MiniclusterError(otherwise)
        time.sleep(0.1)
