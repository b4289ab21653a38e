"""One attempt of a trial: nodes, command, limits, and the variables of its ranks."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm.logs.patterns import LogFormat

if TYPE_CHECKING:
    from foundation.container import Container  # pydantic

TRIAL_VARIABLE = "MESHTUNE_TRIAL"
"""Variable in every rank's environment that names the attempt: later drivers find ranks by it."""

STDOUT_NAME, STDERR_NAME = "stdout.log", "stderr.log"  # in a trial's folder

TRIAL_DIR_VARIABLE = "MESHTUNE_TRIAL_DIR"
"""Variable that names the trial's folder, for ranks that change their working folder."""

# Rendezvous ports: below the kernel's ephemeral ones (32768 and up), above those of most services.
_FIRST_PORT, _NUM_PORTS = 20000, 10000


def carries(environ: Mapping[str, str], names: Collection[str]) -> bool:
    """Whether an environment names one of these trials, or a kept step with one of these marks."""
    name = environ.get(TRIAL_VARIABLE, "")
    return bool(name) and (name in names or kept_mark(name) in names)


def kept_mark(step_name: str) -> str:
    """Common prefix of the names of a run's kept steps, from the name of one."""
    return step_name.rpartition("-")[0] or step_name


@dataclass(frozen=True)
class Lease:
    """Nodes that one trial holds exclusively, in Slurm's order."""

    trial: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Kept:
    """Permission to fork ranks from processes that outlive a trial, if the launcher has any.

    These have imported the trainer, which takes longer than a short trial on many nodes.
    """

    mark: str  # beginning of their TRIAL_VARIABLE, the same for all of a run
    modules: tuple[str, ...]  # that they import


@dataclass(frozen=True)
class TrialSpec:
    """A program to run as a trial, by any launcher.

    ``argv`` is the command of every rank, started in ``started_in``, with torchrun's variables in
    its environment (:func:`rendezvous_environment`).

    Its metrics come from ``result.json`` in its folder; or from the last line ``MESHTUNE_RESULT
    {json}`` of its standard output; or from lines ``MESHTUNE_STEP {json}`` and patterns of ``log``.
    """

    name: str  # unique per attempt and run; the Slurm step's job name
    directory: Path  # absolute, exists; stdout.log, stderr.log, command.txt go here
    argv: tuple[str, ...]
    num_nodes: int
    ranks_per_node: int
    timeout_s: float
    no_progress_timeout_s: float | None = None  # without growth of the logs: a hang
    cpus_per_rank: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    memory_bytes_per_rank: int | None = None  # host memory; enforced where the launcher can
    grace_s: float = 10.0  # between SIGTERM and SIGKILL
    log: LogFormat = field(default_factory=LogFormat)
    warmup_steps: int = 0  # first steps, which do not count
    total_steps: int | None = None  # with the warm-up; None: unknown
    config: Mapping[str, Any] = field(default_factory=dict)  # for a launcher without processes
    workdir: Path | None = None  # absolute; see started_in
    max_steps: int | None = 10_000  # steps passed to its stop rule; None: all
    kept: Kept | None = None  # None: its ranks may not be forked
    container: Container | None = None  # of its ranks; ``workdir`` may exist only in it

    @property
    def started_in(self) -> Path:
        """The ranks' working folder, on every node."""
        return self.workdir or self.directory

    @property
    def obstacle(self) -> str | None:
        """Reason why no rank can be started; None if ranks can."""
        if self.container is not None or self.started_in.is_dir():
            return None
        return f"cannot start in {self.started_in}: there is no such folder"

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.ranks_per_node


def rendezvous_environment(
    spec: TrialSpec, master_addr: str, port: int | None = None
) -> dict[str, str]:
    """Variables that are the same in every rank of a trial.

    The lease's first node gets rank 0, at ``master_addr`` and a port, by default
    :func:`master_port`.
    """
    return {
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port(spec) if port is None else port),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_WORLD_SIZE": str(spec.ranks_per_node),
        "GROUP_WORLD_SIZE": str(spec.num_nodes),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(spec.world_size),
        "TORCHELASTIC_RUN_ID": spec.name,  # Lightning and others recognize torch's launcher by it
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 serves the store, not an agent
        TRIAL_VARIABLE: spec.name,  # by which a later driver finds what was left behind
        TRIAL_DIR_VARIABLE: str(spec.directory),
    }


def rank_environment(rank: int, local_rank: int, node: int) -> dict[str, str]:
    """Variables of one rank; agents set the same ones."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "NODE_RANK": str(node),
        "GROUP_RANK": str(node),
        "ROLE_RANK": str(rank),
    }


def master_port(spec: TrialSpec) -> int:
    """A port derived from the attempt's name, so that a retry gets another one.

    If it is taken on the first node, rank 0 cannot bind it: a launch failure, then a retry.
    """
    return _FIRST_PORT + zlib.crc32(spec.name.encode()) % _NUM_PORTS
