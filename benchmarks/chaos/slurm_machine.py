"""A machine of rounds: a private Slurm on this one."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Collection, Iterator

from benchmarks.chaos.machines import NODES, SLOWER, Machine, lacking_programs, until
from benchmarks.power_cuts import revive_node
from slurm import processes
from slurm.minicluster import cluster as mini, daemons
from slurm.minicluster.config import MiniclusterError

_SITE = """
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=urgent Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP
TaskProlog={prolog}
"""
_PROLOG = """#!/bin/sh
[ -e {greeting} ] && echo "print Welcome to $SLURMD_NODENAME"
exit 0
"""


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
        self.in_array = False  # the next allocation is the last task of a job array
        self.greeting = cluster.conf.parent / "greeting"  # while it is there TaskProlog prints
        self.urgent_t = 0.0  # when the last urgent job was submitted, seconds after the epoch
        if not cluster.config.cgroup:  # only a cgroup holds what has left its session
            self.lacks = frozenset({"leaves_daemon", "closes_everything"})
        self.lacks |= lacking_programs()
        if own:
            prolog = cluster.conf.parent / "prolog"
            prolog.write_text(_PROLOG.format(greeting=self.greeting))
            prolog.chmod(0o755)
            for conf in (cluster.conf, cluster.config.daemons_conf):
                conf.write_text(conf.read_text() + _SITE.format(prolog=prolog))
            self.kill_controller()
            self.start_controller()
            self.ask("scontrol", "reconfigure")  # nodes' daemons, too
            self.ask("scancel", "-u", cluster.config.user)  # whose ends it has forgotten
        else:
            self.lacks |= {"preempt", "prolog_prints"}

    def environment(self) -> dict[str, str]:
        return {"SLURM_JOB_ID": self.job.partition("_")[0], "SLURM_CONF": str(self.cluster.conf)}

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
        until(lambda: self._saved_since(began), 30)

    def _allocated(self) -> str:
        if self.in_array:
            self.in_array = False
            return self._last_of_array()
        said = subprocess.run(
            ["salloc", f"-N{NODES}", "--no-shell", "--exclusive", "--mem=0", "--no-kill", "-t30"],
            env=daemons.environment(self.cluster.conf), capture_output=True, text=True,
            timeout=120 * SLOWER,
        ).stderr  # fmt: skip
        granted = [line for line in said.splitlines() if "Granted job allocation" in line]
        if not granted:
            raise RuntimeError(f"no allocation: {said}")
        return granted[0].split()[-1]

    def _last_of_array(self) -> str:
        """A job array's last task, which is squeue's ARRAY_TASK; the first has half of its nodes.

        Its own id is the array's.
        """
        half = ("--cpus-per-task=32", f"--mem={self.cluster.config.mem_per_node_mib // 2}")
        size = ("-t30", f"-N{NODES}", f"-n{NODES}", "--ntasks-per-node=1", *half, "--no-kill")
        asked = ("sbatch", "--parsable", "--array=0-1", *size, "-o/dev/null", "--wrap=sleep 3600")
        last = f"{self.ask(*asked).strip()}_1"
        if not until(lambda: self.ask("squeue", "-h", "-j", last, "-t", "R"), 60):
            raise RuntimeError(f"no allocation for {last}")
        return last

    def cancel(self) -> None:
        """End the allocation, with all tasks of its array."""
        self.ask("scancel", self.job.partition("_")[0])

    def resume(self, job: str) -> bool:
        """Resume a suspended job; whether the controller was there to do it."""
        self.ask("scontrol", "resume", job)
        state = self.ask("squeue", "-h", "-j", job, "-o", "%T").strip()
        return bool(self.controller()) and state != "SUSPENDED"

    def clean(self) -> None:
        """End the allocation and bring every node back."""
        self.start_controller()
        for node in sorted(self.dead):
            self.kill_slurmd(node)  # which was rebooted
            revive_node(self.cluster, node)
        self.dead.clear()
        if self.job:
            self.cancel()
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
        until(lambda: not self.urgent_t or self._saved_since(self.urgent_t), 15)
        processes.end_all(self.controller)

    def _saved_since(self, moment_s: float) -> bool:
        """Whether the controller has saved its jobs since then."""
        state = self.cluster.conf.parent / "state" / "job_state"
        with contextlib.suppress(FileNotFoundError):  # it is replaced just then
            return state.stat().st_mtime > moment_s
        return False

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
