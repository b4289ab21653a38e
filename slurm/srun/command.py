"""From a trial and a lease to the srun line and its environment; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from foundation.python import isolated_argv
from slurm import agent
from slurm.launcher import LauncherError
from slurm.rendezvous import rendezvous_environment
from slurm.srun.shell import scrubbed
from slurm.srun.site import Site
from slurm.trial import TRIAL_VARIABLE, Lease, TrialSpec

# A leased node is free: a step that Slurm has not granted by then it never will.
_STEP_CREATION_S = 60
_VARIABLES = ("SLURM_PROCID=RANK", "SLURM_LOCALID=LOCAL_RANK")  # of the agent, by torch's names


def srun_argv(spec: TrialSpec, lease: Lease, site: Site, cpus_per_node: int) -> list[str]:
    """The srun line of a trial: of its program, or without one of agents that wait for orders.

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
        *isolated_argv(agent.__file__, f"{TRIAL_VARIABLE}={spec.name}", *_VARIABLES),
        *(("--", *spec.argv) if spec.argv else ()),
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
