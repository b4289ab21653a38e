"""From a trial and a lease to the srun line and its environment; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from slurm.launcher import LauncherError
from slurm.rendezvous import rendezvous_environment
from slurm.srun.shell import scrubbed
from slurm.srun.site import Site
from slurm.trial import Lease, TrialSpec

# A leased node is free: a step that Slurm has not granted by then it never will.
_STEP_CREATION_S = 60
RANK_SCRIPT = Path(__file__).with_name("rank.sh")


def srun_argv(spec: TrialSpec, lease: Lease, site: Site, cpus_per_node: int) -> list[str]:
    """The exact srun line of a trial.

    Nothing is left to the job's defaults: a job's ``--ntasks-per-node`` or ``-c`` would change the
    step. ``-N`` must equal the lease's width, or srun widens onto nodes that were not leased. Ranks
    share the allocation's ``cpus_per_node`` unless the trial or site says.

    Raises LauncherError if the lease does not fit the trial.
    """
    if len(lease.nodes) != spec.num_nodes:
        raise LauncherError(
            f"{spec.name} needs {spec.num_nodes} nodes, its lease has {len(lease.nodes)}"
        )
    return [
        "srun",
        f"-N{spec.num_nodes}",
        f"-n{spec.world_size}",
        f"-c{_cpus(spec, site, cpus_per_node)}",
        *_gpu_options(spec, site),
        f"--nodelist={','.join(lease.nodes)}",
        f"--ntasks-per-node={spec.ranks_per_node}",
        "--distribution=block",  # consecutive ranks share a node
        f"--mem={_node_memory(spec)}",
        "--exact",
        # After a node is lost, Slurm (22.05 to 25) keeps the cores of the steps that ran just then
        # marked as used for the rest of the job, "due to job resizing": without --overlap their
        # healthy nodes would be busy for ever. The lease is what keeps two trials apart.
        "--overlap",
        "-K1",
        *_time_limit(spec),
        f"--immediate={_STEP_CREATION_S}",
        f"--job-name={spec.name}",
        "--export=ALL",
        *site.srun_options,
        "/bin/sh",
        str(RANK_SCRIPT),
        *spec.argv,
    ]


def srun_environment(
    spec: TrialSpec,
    lease: Lease,
    site: Site,
    master_addr: str,
    environ: Mapping[str, str],
    cpus_per_node: int,
) -> dict[str, str]:
    """The environment that srun is started with and hands to every rank.

    The trial's own settings win over the site's. ``master_addr`` is the address of the lease's
    first node, which gets rank 0.
    """
    return {
        **scrubbed(environ),
        "OMP_NUM_THREADS": str(_cpus(spec, site, cpus_per_node)),  # else each rank has all cores'
        "PYTHONUNBUFFERED": "1",  # progress is seen by the growth of the logs
        **site.env,
        **spec.env,
        **rendezvous_environment(spec, master_addr),
    }


def _cpus(spec: TrialSpec, site: Site, cpus_per_node: int) -> int:
    return spec.cpus_per_rank or site.cpus_per_rank or max(1, cpus_per_node // spec.ranks_per_node)


def _gpu_options(spec: TrialSpec, site: Site) -> list[str]:
    match site.gpus:
        case "per_task":
            return ["--gpus-per-task=1", "--gpu-bind=closest"]
        case "per_node":
            return [f"--gpus-per-node={spec.ranks_per_node}"]
        case "none":
            return []


def _time_limit(spec: TrialSpec) -> list[str]:
    """A limit beyond the trial's own; none for a step that outlives its trials."""
    if math.isinf(spec.timeout_s):
        return []
    return [f"--time={math.ceil(spec.timeout_s / 60) + 1}"]


def _node_memory(spec: TrialSpec) -> str:
    """The value of srun's --mem, per node; 0: all that the job has there."""
    if spec.memory_bytes_per_rank is None:
        return "0"
    return f"{math.ceil(spec.memory_bytes_per_rank * spec.ranks_per_node / 2**20)}M"
