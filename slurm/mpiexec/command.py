"""From a trial and a lease to the mpiexec line and its environment; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from foundation.python import module_argv
from slurm.launcher import LauncherError
from slurm.mpiexec.dialects import Dialect
from slurm.mpiexec.hosts import Host
from slurm.rendezvous import rendezvous_environment
from slurm.sweep.node import ALL
from slurm.trial import Lease, TrialSpec

RANK_SCRIPT = Path(__file__).with_name("rank.sh")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # what else a shell exports is its own business
# With these in its environment, an mpiexec takes itself for a rank of another one.
_OF_A_RANK = ("OMPI_COMM_WORLD_", "OMPI_MCA_ess_base_", "PMI_", "PMIX_", "MPI_LOCAL", "HYDI_")
# These hold on the driver's host or in its shell only; a PBS job's TMPDIR is on one host.
_OF_THIS_HOST = {"DISPLAY", "HOST", "HOSTNAME", "OLDPWD", "PWD", "SHLVL", "TERM", "TMPDIR", "_"}
_OF_THIS_JOB = ("LSB_", "LSF_", "LS_", "PBS_", "SLURM", "SSH_", "XDG_")


def mpiexec_argv(
    program: str,
    dialect: Dialect,
    spec: TrialSpec,
    lease: Lease,
    hosts: Mapping[str, Host],
    environ: Mapping[str, str],
) -> list[str]:
    """The exact mpiexec line of a trial; hosts' slots, if given, limit its ranks there.

    Raises LauncherError if the lease does not fit the trial.
    """
    if len(lease.nodes) != spec.num_nodes:
        raise LauncherError(
            f"{spec.name} needs {spec.num_nodes} nodes, its lease has {len(lease.nodes)}"
        )
    for node in lease.nodes:
        slots = hosts[node].slots if node in hosts else None
        if slots is not None and slots < spec.ranks_per_node:
            raise LauncherError(
                f"{spec.name} has {spec.ranks_per_node} ranks a node, and the host file gives "
                f"{node} slots={slots}: raise that, or lower the cluster's gpus_per_node"
            )
    line = dialect.argv(program, lease.nodes, spec.ranks_per_node, exported(environ), tagged=True)
    rank = [dialect.rank_variable, dialect.local_rank_variable, dialect.failed_rank]
    return [*line, "/bin/sh", str(RANK_SCRIPT), *rank, *map(_escaped, spec.argv)]


def _escaped(argument: str) -> str:
    """The argument as rank.sh takes it: a colon alone would start Open MPI's next program."""
    return f"={argument}" if argument == ":" or argument.startswith("=") else argument


def mpiexec_environment(
    spec: TrialSpec, lease: Lease, master_addr: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """The environment of mpiexec, from which ranks get the variables that :func:`exported` names.

    ``master_addr`` is the address of the lease's first host, which gets rank 0.
    """
    defaults = {"PYTHONUNBUFFERED": "1"}  # progress is seen by the growth of the logs
    if spec.cpus_per_rank is not None:
        defaults["OMP_NUM_THREADS"] = str(spec.cpus_per_rank)
    ours = {
        **rendezvous_environment(spec, master_addr),
        "MESHTUNE_NODES": ",".join(lease.nodes),  # by which rank.sh knows where it is
    }
    if spec.memory_bytes_per_rank is not None:
        ours["MESHTUNE_MEMORY_KIB"] = str(max(1, spec.memory_bytes_per_rank // 1024))
    inherited = scrubbed(environ)
    inherited.pop("OMP_NUM_THREADS", None)  # the driver's own; rank.sh shares the host's cores
    return {**inherited, **defaults, **spec.env, **ours}


def sweep_argv(
    program: str,
    dialect: Dialect,
    hosts: Sequence[str],
    names: Iterable[str],
    environ: Iterable[str],
) -> list[str]:
    """The mpiexec line that ends whatever is left of these trials, one process a host."""
    line = dialect.argv(program, hosts, 1, exported(environ))
    return [*line, *module_argv("slurm.sweep.node", dialect.rank_variable, ALL, *names)]


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables of an mpiexec around the driver."""
    return {k: v for k, v in environ.items() if not k.startswith(_OF_A_RANK)}


def exported(environ: Iterable[str]) -> list[str]:
    """Names of the variables that other hosts get: all but those that hold on this one only."""
    return sorted(
        name
        for name in environ
        if _NAME.fullmatch(name) and name not in _OF_THIS_HOST and not name.startswith(_OF_THIS_JOB)
    )
