"""The job that surrounds the search: its nodes, its steps, its end."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from slurm.launcher import AllocationGoneError, AllocationState, LauncherError
from slurm.srun import shell
from slurm.srun.shell import NoAnswerError, Run, SlurmError, UnknownJobError

LEFT_OUT = "MESHTUNE_LEFT_OUT"
"""Variable of a batch script that lists the job's unusable nodes."""
_TIME_CHECK_S = 60.0
_DOWN = ("down", "fail", "future")
_HELD = ("CONFIGURING", "RESIZING", "RUNNING", "SIGNALING", "STOPPED", "SUSPENDED")
# For the controller's answer: a trial holds its nodes meanwhile, and would be blamed for a failure.
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class JobStep:
    """A running step, as squeue lists it."""

    id: str  # JOB.STEP
    name: str
    nodes: str  # Slurm's compact form

    @property
    def job(self) -> str:
        return self.id.partition(".")[0]


class Allocation:
    """A Slurm job, queried with Slurm's own commands; ``left_out`` nodes are not used.

    Raises AllocationGoneError if the job does not run, SlurmError if Slurm's controller does not
    answer for ten minutes.
    """

    def __init__(self, job: str, run: Run = shell.run, left_out: Collection[str] = ()) -> None:
        self.job = self.listed_as = job  # listed_as: in the ids of steps, ARRAY_TASK or HET+OFFSET
        self._run = run
        answer = ""
        with contextlib.suppress(UnknownJobError):
            answer = self._about_job("%T|%N|%C|%D|%L", partial(shell.patiently, once=run))
        state, _, answer = answer.partition("|")
        if state not in _HELD or answer.startswith("|"):
            raise AllocationGoneError(
                f"squeue shows no nodes of job {job}: it is not running (any more); resume in "
                "another allocation, or with `meshtune submit`"
            )
        compact, cpus, num_nodes, left = answer.split("|")
        self.nodes = tuple(n for n in self.hostnames(compact) if n not in left_out)
        self.cpus_per_node = max(1, int(cpus) // int(num_nodes))
        self._addresses: dict[str, str] = {}
        self._end_t: float | None = None  # on the monotonic clock
        self.over = False  # True: it accepts no further step
        self._note_time_left(left)

    @classmethod
    def current(cls, environ: Mapping[str, str] = os.environ, exclude: str = "") -> Allocation:
        """The allocation that this process is in, without the nodes to ``exclude``.

        Raises LauncherError if there is no allocation, or it has no such nodes, or no others.
        """
        job = environ.get("SLURM_JOB_ID")
        if not job:
            raise LauncherError(
                "the srun launcher needs a Slurm allocation and SLURM_JOB_ID is not set: start it "
                "with `meshtune submit`, or inside salloc; --launcher local needs no Slurm"
            )
        found = cls(job, left_out=environ.get(LEFT_OUT, "").split())
        if "+" in found.listed_as:
            raise LauncherError(
                f"job {job} is heterogeneous: a search compares trials on equal nodes; start it in "
                "a job without components"
            )
        if not exclude:
            return found
        excluded = found.hostnames(exclude)
        if unknown := [node for node in excluded if node not in found.nodes]:
            raise LauncherError(
                f"--exclude {exclude}: {unknown[0]} is no node of job {job}, which has "
                f"{', '.join(found.nodes)}"
            )
        found.nodes = tuple(node for node in found.nodes if node not in excluded)
        if not found.nodes:
            raise LauncherError(f"--exclude {exclude}: job {job} has no other nodes")
        found.cpus_per_node = found._cpus_of(found.nodes[0]) or found.cpus_per_node
        return found

    def state(self) -> AllocationState:
        """Whether the job still holds its nodes; asks Slurm once."""
        try:
            state, _, nodes = self._about_job("%T|%N").partition("|")
        except UnknownJobError:
            return AllocationState.GONE
        except SlurmError:
            return AllocationState.SILENT
        # squeue still lists a job that has just ended; a requeued one has no nodes yet.
        if state not in _HELD or not nodes or self.over:
            return AllocationState.GONE
        return AllocationState.SILENT if state == "SUSPENDED" else AllocationState.HELD

    def steps(self, *, of_user: bool = False) -> list[JobStep]:
        """Steps that squeue lists for the job, or for all jobs of this user."""
        whose = ("-u", str(os.getuid())) if of_user else ("-j", self.job)
        listing = self._run(["squeue", "-h", "-s", *whose, "-o", "%i|%j|%N"]).splitlines()
        return [JobStep(*line.split("|", 2)) for line in listing if line.count("|") >= 2]

    def on_live_nodes(self, steps: list[JobStep]) -> list[JobStep]:
        """The steps with at least one node that is not down.

        Slurm (seen with 22.05) lists a step whose nodes have all died until the job ends; none of
        its processes can run on nodes that this job will use again.
        """
        down = self.down_nodes() if steps else set()
        return [s for s in steps if set(self.hostnames(s.nodes)) - down]

    def controller_start(self) -> str:
        """Time at which the answering controller started, as Slurm writes it."""
        found = re.search(r"BOOT_TIME\s*=\s*(\S+)", self._run(["scontrol", "show", "config"]))
        return found[1] if found else ""

    def job_start(self) -> str:
        """Time at which the job got its nodes, as Slurm writes it."""
        return self._about_job("%S")

    def cancel(self, step: JobStep) -> None:
        """Ask Slurm to end a step; :meth:`steps` shows whether it has ended."""
        with contextlib.suppress(SlurmError):
            self._run(["scancel", step.id])

    def address(self, node: str) -> str:
        """The address at which ranks reach a node: its name, or Slurm's address of it.

        Raises NoAnswerError if Slurm's controller does not answer for a minute.
        """
        if node not in self._addresses:
            try:
                self._addresses[node] = node if _resolves(node) else self._node_address(node)
            except NoAnswerError:
                raise  # a wrong address would count as the trial's own failure
            except SlurmError:
                return node  # srun will report what is wrong with it
        return self._addresses[node]

    def refuse_mixed_nodes(self) -> None:
        """Raise LauncherError if the nodes have different GPUs, or numbers of GPUs or cores.

        A search compares all trials as if they ran on equal nodes.
        """
        # -e: or nodes with 32 and with 64 cores are one line, of "32+".
        argv = ["sinfo", "-h", "-e", "-n", ",".join(self.nodes), "-o", "%G|%c|%N"]
        kinds: dict[str, list[str]] = {}
        for line in dict.fromkeys(shell.patiently(argv, self._run).splitlines()):
            gres, cpus, nodes = [*line.split("|", 2), "", ""][:3]
            gpus = re.findall(r"(?:^|,)(gpu(?::[^,(]+)?)", gres)  # like gpu:a100:4(S:0-1),shard:8
            kinds.setdefault(" ".join([*gpus, f"{cpus} cores"]), []).append(nodes)
        if len(kinds) < 2:
            return
        each = [f"{','.join(nodes)} ({kind})" for kind, nodes in kinds.items()]
        kept = [",".join(n for k, ns in kinds.items() if k != kind for n in ns) for kind in kinds]
        raise LauncherError(
            f"the job's nodes differ: {'; '.join(each)}; a search compares trials on equal ones: "
            f"--exclude {' or --exclude '.join(kept)}"
        )

    def _cpus_of(self, node: str) -> int:
        """The job's CPUs on a node, as excluded ones may have had more or fewer; 0 if unknown."""
        argv = ["scontrol", "show", "job", "-d", "-o", self.listed_as]
        shown = shell.patiently(argv, self._run)
        for nodes, cpus in re.findall(r"\bNodes=(\S+) CPU_IDs=([\d,-]+)", shown):
            if node in self.hostnames(nodes):
                ranges = re.findall(r"(\d+)-?(\d*)", cpus)  # like 0-31,40
                return sum(int(last or first) - int(first) + 1 for first, last in ranges)
        return 0

    def gpus_per_node(self) -> int:
        """GPUs of the job's first node, even if the job was not granted all of them."""
        shown = shell.patiently(["scontrol", "show", "node", self.nodes[0], "-o"], self._run)
        gres = re.search(r"\bGres=(\S*)", shown)  # like gpu:a100:4(S:0-1),shard:8
        counts = re.findall(r"(?:^|,)gpu(?::[^:,(]+)?:(\d+)", gres[1] if gres else "")
        return sum(map(int, counts))

    def time_left_s(self) -> float | None:
        """Seconds until the job's time limit; None if it has none. Asks Slurm once a minute."""
        if time.monotonic() - self._end_checked_t >= _TIME_CHECK_S:
            left = ""
            with contextlib.suppress(SlurmError):  # keep the last known time limit
                left = self._about_job("%L")
            self._note_time_left(left)
        return None if self._end_t is None else self._end_t - time.monotonic()

    def _note_time_left(self, left: str) -> None:
        self._end_checked_t = time.monotonic()
        with contextlib.suppress(SlurmError):  # the job is over
            left_s = parse_time_left(left)
            self._end_t = None if left_s is None else self._end_checked_t + left_s

    def down_nodes(self, patience_s: float = 0.0) -> set[str]:
        """Nodes that are down, or no longer belong to the job.

        A controller that does not answer is asked again for ``patience_s``.

        Raises SlurmError if it still does not answer, or the job has no nodes any more.
        """
        compact = self._about_job("%N", partial(self._ask, patience_s=patience_s))
        if not compact:
            raise SlurmError(f"job {self.job} has no nodes: it is not running (any more)")
        lost = set(self.nodes) - set(self.hostnames(compact))
        sinfo = ["sinfo", "-h", "-N", "-n", ",".join(self.nodes), "-o", "%N|%T"]
        lines = self._ask(sinfo, patience_s)
        # A node has a line for each of its partitions.
        states = dict(line.split("|", 1) for line in lines.splitlines() if "|" in line)
        return lost | {node for node, state in states.items() if state.startswith(_DOWN)}

    def known_down_nodes(self, patience_s: float = _PATIENCE_S) -> set[str]:
        """Nodes that are down; none if Slurm does not answer."""
        with contextlib.suppress(SlurmError):
            return self.down_nodes(patience_s)
        return set()

    def _ask(self, argv: Sequence[str], patience_s: float = _PATIENCE_S) -> str:
        return shell.patiently(argv, self._run, patience_s, tell=lambda _: None)

    def _about_job(self, fields: str, ask: Run | None = None) -> str:
        """The fields of the job that squeue lists; "" if it lists none.

        A job array's id is also its last task's: asked for it, squeue lists every task.
        """
        said = (ask or self._run)(["squeue", "-h", "-j", self.job, "-o", f"%i|%A|{fields}"])
        for line in said.splitlines():
            listed, job, answer = [*line.split("|", 2), "", ""][:3]
            if self.job in (listed, job):
                self.job, self.listed_as = job, listed
                return answer
        return ""

    def hostnames(self, compact: str) -> tuple[str, ...]:
        """The nodes of a list in Slurm's compact form, in its order.

        Raises SlurmError if scontrol fails; without a slurm.conf it needs the controller.
        """
        argv = ["scontrol", "show", "hostnames", compact]
        return tuple(self._ask(argv).split())

    def _node_address(self, node: str) -> str:
        shown = self._ask(["scontrol", "show", "node", node, "-o"])
        fields = dict(item.split("=", 1) for item in shown.split() if "=" in item)
        return fields.get("NodeAddr", node)


def parse_time_left(text: str) -> float | None:
    """Seconds of squeue's %L, ``[days-]hours:minutes:seconds``; None for no limit.

    Raises SlurmError for a job that is gone, which has no such time.
    """
    if text in ("UNLIMITED", "NOT_SET"):
        return None
    try:
        days, _, clock = text.rpartition("-")
        seconds = 0
        for part in clock.split(":"):
            seconds = 60 * seconds + int(part)
        return float(86400 * int(days or 0) + seconds)
    except ValueError:
        raise SlurmError(f"squeue shows {text!r} as the job's time left") from None


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True
