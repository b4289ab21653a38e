"""From a trial and a lease to the mpiexec line and its environment; pure."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

from foundation.python import isolated_argv, module_argv
from slurm import agent, kernel
from slurm.handshake import VARIABLE
from slurm.launcher import LauncherError, check_width
from slurm.mpiexec.dialects import Dialect
from slurm.mpiexec.hosts import Host
from slurm.sweep.node import ALL
from slurm.trial import TRIAL_VARIABLE, Lease, TrialSpec, rendezvous_environment

_OF_INTERPRETERS = {"LD_LIBRARY_PATH"}  # agents need it; other variables come with the order
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # shells also export functions, by other names
# With these in its environment, an mpiexec takes itself for a rank of another one.
_OF_A_RANK = ("OMPI_COMM_WORLD_", "OMPI_MCA_ess_base_", "PMI_", "PMIX_", "MPI_LOCAL", "HYDI_")
# These hold on the driver's host or in its shell only; a PBS job's TMPDIR is on one host.
_OF_THIS_HOST = {"DISPLAY", "HOST", "HOSTNAME", "OLDPWD", "PWD", "SHLVL", "TERM", "TMPDIR", "_"}
_OF_THIS_JOB = ("LSB_", "LSF_", "LS_", "PBS_", "SLURM", "SSH_", "XDG_")


def mpiexec_argv(
    dialect: Dialect,
    spec: TrialSpec,
    lease: Lease,
    hosts: Mapping[str, Host],
    environ: Collection[str],
) -> list[str]:
    """The mpiexec line of a trial's program, or, without one, of agents that wait for orders.

    The slots of a host, if given, limit its ranks; ``environ`` names a rank's variables.

    Raises LauncherError if the lease does not fit the trial.
    """
    check_width(spec, lease)
    for node in lease.nodes:
        slots = hosts[node].slots if node in hosts else None
        if slots is not None and slots < spec.ranks_per_node:
            raise LauncherError(
                f"{spec.name} has {spec.ranks_per_node} ranks a node, and the host file gives "
                f"{node} slots={slots}: raise that, or lower the cluster's gpus_per_node"
            )
    words = [f"{TRIAL_VARIABLE}={spec.name}"]
    words += [f"{dialect.rank_variable}=RANK", f"{dialect.local_rank_variable}=LOCAL_RANK"]
    if spec.argv:
        # To Open MPI a lone colon begins another program.
        whole = (
            ["/bin/sh", "-c", f"exec {shlex.join(spec.argv)}"] if ":" in spec.argv else spec.argv
        )
        words += ["--", *whole]
    names = {VARIABLE, "LOCAL_WORLD_SIZE"} | _OF_INTERPRETERS.intersection(environ)
    names = set(environ) if spec.argv else names
    line = dialect.argv(lease.nodes, spec.ranks_per_node, sorted(names))
    return [*line, *isolated_argv(agent.__file__, *words)]


def mpiexec_environment(spec: TrialSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of mpiexec itself; agents on other hosts get little of it."""
    own = {TRIAL_VARIABLE: spec.name, "LOCAL_WORLD_SIZE": str(spec.ranks_per_node)}
    ours = {*own, "OMP_NUM_THREADS"}  # the driver's own: agents share their host's cores
    # In this order: MPICH 4.0.2 loses the last variable of its environment.
    return {**own, **{key: value for key, value in scrubbed(environ).items() if key not in ours}}


def trial_environment(
    spec: TrialSpec, lease: Lease, master_addr: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """The variables of every rank: ours, and those of the driver that hold on other hosts.

    ``master_addr`` is the address of the lease's first host, which gets rank 0.
    """
    inherited = {name: environ[name] for name in exported(scrubbed(environ))}
    inherited.pop("OMP_NUM_THREADS", None)
    defaults = {"PYTHONUNBUFFERED": "1"}  # progress is seen by the growth of the logs
    if spec.cpus_per_rank is not None:
        defaults["OMP_NUM_THREADS"] = str(spec.cpus_per_rank)
    rendezvous = rendezvous_environment(spec, master_addr)
    return {**inherited, **defaults, **spec.env, **rendezvous}


def sweep_argv(
    dialect: Dialect, hosts: Sequence[str], names: Iterable[str], environ: Iterable[str]
) -> list[str]:
    """The mpiexec line that ends the remaining processes of these trials, one process a host."""
    line = dialect.argv(hosts, 1, exported(environ))
    return [*line, *module_argv("slurm.sweep.node", dialect.rank_variable, ALL, *names)]


def bound(argv: Sequence[str]) -> list[str]:
    """A command that is killed when the thread that starts it ends, in any way.

    An mpiexec may wait for ever for a host's daemon that was killed.
    """
    return [*isolated_argv(kernel.__file__, str(os.getpid())), *argv]


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables of an mpiexec around the driver."""
    return {k: v for k, v in environ.items() if not k.startswith(_OF_A_RANK)}


def exported(environ: Iterable[str]) -> list[str]:
    """Names of the variables that other hosts get: all but those that hold on this host only."""
    return sorted(
        name
        for name in environ
        if _NAME.fullmatch(name) and name not in _OF_THIS_HOST and not name.startswith(_OF_THIS_JOB)
    )
