"""Machines of a round: this machine's processes, a private Slurm on it, or hosts of an mpiexec."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from benchmarks.power_cuts import revive_node
from slurm import processes
from slurm.minicluster import cluster as mini, daemons
from slurm.minicluster.config import MiniclusterError

NODES = 3  # of a round's allocation
SLOWER = float(os.environ.get("CHAOS_SLOWER", "1"))  # all limits on time are so many times longer
_PREEMPTION = """
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=urgent Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP
"""


class Machine(ABC):
    """Gives drivers what they are started with, and says what they have left."""

    launcher: str
    no_progress_s: float  # silence of a trial's that is a hang here
    lacks: frozenset[str] = frozenset()  # faults and cases that cannot be here

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """Additional variables of a driver's environment."""

    def arguments(self) -> list[str]:
        """Additional arguments of a search."""
        return []

    def renew(self) -> None:  # noqa: B027 - processes need nothing
        """Make sure that a driver can start trials; called before each."""

    def steps_left(self, names: Collection[str]) -> list[str]:
        """Steps of these names, in words."""
        return []

    def clean(self) -> None:  # noqa: B027
        """After a round: end what it was given."""


class Local(Machine):
    """Processes of this machine."""

    launcher = "local"
    no_progress_s = 8.0

    def __init__(self) -> None:
        if os.geteuid() != 0:  # to mount a small disk
            self.lacks = frozenset({"disk_full", "no_inodes"})
        self.lacks |= _lacking_programs()

    def environment(self) -> dict[str, str]:
        return {}


# Stands in for ssh. Of the environment of its caller only the round's mark gets to a host.
_SSH = """\
#!/bin/sh
while :; do case $1 in -*) shift ;; *) break ;; esac; done
host=$1
shift
if [ -e "{folder}/down.$host" ]; then
  echo "ssh: connect to host $host port 22: No route to host" >&2
  exit 255
fi
mkdir -p "{folder}/$host"
exec env -i HOME="$HOME" PATH="$PATH" PYTHONPATH="$PYTHONPATH" CHAOS_ROUND="$CHAOS_ROUND" \\
  TMPDIR="{folder}/$host" setsid /bin/sh -c "$*"
"""


class Mpiexec(Machine):
    """Hosts that an Open MPI reaches by a stand-in for ssh, which are all this machine.

    Args:
        folder: of its own; its path is short, and has no spaces.
    """

    launcher = "mpiexec"
    no_progress_s = 20.0

    def __init__(self, folder: Path) -> None:
        self.lacks = _lacking_programs()
        self.folder = folder
        self.hosts = [f"h{number}" for number in range(NODES)]
        (folder / "ssh").write_text(_SSH.format(folder=folder))
        (folder / "ssh").chmod(0o755)
        (folder / "hosts").write_text("".join(f"{host}\n" for host in self.hosts))

    def environment(self) -> dict[str, str]:
        agents = ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent")
        root = ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT")
        return {
            **dict.fromkeys(agents, str(self.folder / "ssh")),
            **dict.fromkeys(root, "1"),
            **dict.fromkeys((f"{name}_CONFIRM" for name in root), "1"),
        }

    def arguments(self) -> list[str]:
        return ["--hostfile", str(self.folder / "hosts")]

    def strike(self, host: str) -> None:
        """The host dies with all that is on it, and answers no more."""
        (self.folder / f"down.{host}").touch()
        here = str(self.folder / host)  # and none of another campaign's
        processes.end_all(lambda: processes.with_environ(lambda e: e.get("TMPDIR") == here))

    def renew(self) -> None:
        """Bring every host back."""
        for host in self.hosts:
            (self.folder / f"down.{host}").unlink(missing_ok=True)


class Slurm(Machine):
    """A minicluster, and an allocation for each round.

    Args:
        cluster: that is up.
        own: whether it is this campaign's alone, and its configuration may be changed.
    """

    launcher = "srun"
    no_progress_s = 20.0

    def __init__(self, cluster: mini.Minicluster, own: bool = False) -> None:
        self.cluster = cluster
        self.job = ""
        self.dead: set[str] = set()  # nodes that a fault has killed
        self.is_ending = False  # the allocation, by a fault: no search can be done in it
        self.urgent_t = 0.0  # when the last urgent job was submitted, seconds after the epoch
        if not cluster.config.cgroup:  # only a cgroup holds what has left its session
            self.lacks = frozenset({"leaves_daemon", "closes_everything"})
        self.lacks |= _lacking_programs()
        if own:
            for conf in (cluster.conf, cluster.config.daemons_conf):
                conf.write_text(conf.read_text() + _PREEMPTION)
            self.kill_controller()
            self.start_controller()
        else:
            self.lacks |= {"preempt"}

    def environment(self) -> dict[str, str]:
        return {"SLURM_JOB_ID": self.job, "SLURM_CONF": str(self.cluster.conf)}

    def renew(self) -> None:
        usable = not self.dead and not self.is_ending
        if self.job and self.job_state() == "RUNNING" and usable:
            return
        self.clean()
        began = time.time()
        try:
            self.job = self._allocated()
        except (subprocess.TimeoutExpired, RuntimeError):
            # Nodes are held by a job that Slurm has forgotten, or whose grant got lost.
            self.kill_controller()
            self.start_controller("-c")  # without its state
            self.job = self._allocated()
        # A controller that is killed sooner has forgotten the job, whose nodes stay allocated then.
        state = self.cluster.conf.parent / "state" / "job_state"
        until(lambda: state.exists() and state.stat().st_mtime > began, 30)

    def _allocated(self) -> str:
        said = subprocess.run(
            ["salloc", f"-N{NODES}", "--no-shell", "--exclusive", "--mem=0", "--no-kill", "-t30"],
            env=daemons.environment(self.cluster.conf), capture_output=True, text=True,
            timeout=120 * SLOWER,
        ).stderr  # fmt: skip
        granted = [line for line in said.splitlines() if "Granted job allocation" in line]
        if not granted:
            raise RuntimeError(f"no allocation: {said}")
        return granted[0].split()[-1]

    def clean(self) -> None:
        """End the allocation and bring every node back."""
        self.start_controller()
        for node in sorted(self.dead):
            self.kill_slurmd(node)  # which was rebooted
            revive_node(self.cluster, node)
        self.dead.clear()
        if self.job:
            self.ask("scancel", self.job)
            until(lambda: not self.ask("squeue", "-h"), 60)
        for node, state in self._states().items():
            if "drain" in state:  # a step daemon there was stopped for too long
                self.ask("scontrol", "update", f"nodename={node}", "state=resume")
        self.job, self.is_ending = "", False
        until(self._all_idle, 60)

    def job_state(self) -> str:
        """The allocation's state by squeue; empty if it is gone."""
        return self.ask("squeue", "-h", "-j", self.job, "-o", "%T").strip()

    def steps(self) -> list[str]:
        """Ids of the steps that Slurm lists."""
        return self.ask("squeue", "-h", "-s", "-o", "%i").split()

    def steps_left(self, names: Collection[str]) -> list[str]:
        lines = self.ask("squeue", "-h", "-s", "-o", "%j|%i|%N").splitlines()
        steps = [tuple(line.split("|", 2)) for line in lines]
        # What has died with its node is listed until the job ends.
        return [f"{i} on {n}" for name, i, n in steps if name in names and n not in self.dead]

    def nodes(self) -> list[str]:
        """The allocation's nodes."""
        compact = self.ask("squeue", "-h", "-j", self.job, "-o", "%N").strip()
        return self.ask("scontrol", "show", "hostnames", compact).split() if compact else []

    def ask(self, *argv: str) -> str:
        """Standard output of one of Slurm's commands; empty if it fails."""
        with contextlib.suppress(MiniclusterError):
            return self.cluster.run(*argv)
        return ""

    @contextlib.contextmanager
    def urgent_job(self) -> Iterator[None]:
        """A job of higher priority that wants all nodes for a moment."""
        command = [
            "srun",
            "-purgent",
            f"-N{NODES + 1}",
            "--exclusive",
            "--mem=0",
            "-t1",
            "sleep",
            "1",
        ]
        env = daemons.environment(self.cluster.conf)
        quiet = subprocess.DEVNULL
        job = subprocess.Popen(command, env=env, stdin=quiet, stdout=quiet, stderr=quiet)
        try:
            until(lambda: self.ask("squeue", "-h", "-p", "urgent"), 5)
            self.urgent_t = time.time()
            yield
        finally:
            job.terminate()
            job.wait()

    def controller(self) -> set[int]:
        return daemons.controller(self.cluster.config)

    def kill_controller(self) -> None:
        """Kill it once it has saved the urgent job, if there was one.

        It would give an id that it has forgotten to the next job, whose steps the nodes then kill
        for seconds: they were told to end all that has this id.
        """
        state = Path(self.cluster.config.directory) / "state" / "job_state"

        def saved() -> bool:
            with contextlib.suppress(FileNotFoundError):  # it is replaced just then
                return not self.urgent_t or state.stat().st_mtime > self.urgent_t
            return False

        until(saved, 15)
        processes.end_all(self.controller)

    def start_controller(self, *options: str) -> None:
        """Start it if it is not there; it has its state."""
        config = self.cluster.config
        if not self.controller():
            daemons.start_daemon(config, "slurmctld", *options, "-f", str(config.daemons_conf))
            until(lambda: bool(self.ask("sinfo", "-h")), 30)

    def kill_munged(self) -> None:
        """The daemon without which nobody can prove to another who he is."""
        log = f"{self.cluster.config.directory}/log/munged.log"
        named = {pid for pid in processes.all_pids() if processes.name(pid) == "munged"}
        processes.end_all(lambda: {pid for pid in named if log in processes.open_files(pid)})

    def start_munged(self) -> None:
        daemons.start_munged(self.cluster.config)

    def reboot(self, node: str) -> None:
        """A node dies with all that is on it, and is back before anybody has missed it."""
        self.dead.add(node)
        config = self.cluster.config
        processes.end_all(lambda: daemons.node_processes(config, node))
        daemons.start_daemon(config, "slurmd", "-b", "-f", str(config.daemons_conf), "-N", node)

    def kill_slurmd(self, node: str) -> None:
        """A node's daemon alone; its steps continue."""
        processes.end_all(lambda: self.on_node(node, "slurmd"))

    def start_slurmd(self, node: str) -> None:
        if not self.on_node(node, "slurmd"):
            daemons.start_slurmd(self.cluster.config, node)

    def on_node(self, node: str, name: str) -> set[int]:
        """Processes of a node with this name."""
        found = daemons.node_processes(self.cluster.config, node)
        return {pid for pid in found if processes.name(pid) == name}

    def _all_idle(self) -> bool:
        return set(self._states().values()) == {"idle"}

    def _states(self) -> dict[str, str]:
        with contextlib.suppress(MiniclusterError):
            return self.cluster.node_states()
        return {}


def can_trace() -> bool:
    """Whether strace is here, and may trace."""
    line = ["strace", "-o", "/dev/null", "true"]
    with contextlib.suppress(OSError):
        return subprocess.run(line, capture_output=True).returncode == 0
    return False


def _lacking_programs() -> frozenset[str]:
    """Faults that need a program which is not here."""
    return (
        frozenset()
        if shutil.which("strace")
        else frozenset({"stale_files", "no_locks", "read_only"})
    )


def until(condition: Callable[[], object], deadline_s: float) -> bool:
    """Wait until it holds; whether it does by then."""
    deadline = time.monotonic() + deadline_s * SLOWER
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def marked(marker: str, others: bool = False) -> set[int]:
    """Running processes of a round: its driver's, and those of ``others`` that a fault started."""
    wanted = {marker, f"{marker}other"} if others else {marker}
    return processes.with_environ(lambda env: env.get("CHAOS_ROUND") in wanted)


def command_line(pid: int) -> str:
    """The command line of a process; empty if it is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace")


def parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had; 0 if it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 0


def as_in_a_terminal() -> None:
    """Heed Ctrl-C: what a shell starts in the background ignores it, and so would its children."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
