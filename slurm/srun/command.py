"""From a trial and a lease to the srun line and its environment; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from foundation.python import isolated_argv
from slurm import agent
from slurm.launcher import check_width
from slurm.srun.containers import (
    PYTHON,
    ContainerLine,
    container_line,
    variables,
    without_the_drivers_own,
)
from slurm.srun.shell import scrubbed
from slurm.srun.site import Site
from slurm.trial import TRIAL_VARIABLE, Lease, TrialSpec, rendezvous_environment

# A leased node is free: if Slurm has not granted a step by then, it never will.
_STEP_CREATION_S = 60
# With these, srun would cut off agents' messages, or write into them.
_OF_STREAMS = {f"SLURM_{name}" for name in ("LABELIO", "STDINMODE", "STDOUTMODE", "STDERRMODE")}
_VARIABLES = ("SLURM_PROCID=RANK", "SLURM_LOCALID=LOCAL_RANK")  # of the agent, by torch's names


def srun_argv(spec: TrialSpec, lease: Lease, site: Site, cpus_per_node: int) -> list[str]:
    """The srun line of a trial's program, or, without one, of agents that wait for orders.

    ``spec`` is as agents start it (:func:`contained`).

    Nothing is left to the job's defaults: a job's ``--ntasks-per-node`` or ``-c`` would change the
    step. ``-N`` must equal the lease's width, or srun widens onto nodes that were not leased. Ranks
    share the allocation's ``cpus_per_node`` unless the trial or the site sets their number.

    Raises LauncherError if the lease does not fit the trial.
    """
    check_width(spec, lease)
    line = started_container(spec, site)
    inside = line is not None and line.runtime.inside
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
        # After a node is lost, Slurm (22.05 to 25) marks the cores of the steps running then as
        # used for the rest of the job ("due to job resizing"): without --overlap their healthy
        # nodes would stay busy. Leases keep trials apart.
        "--overlap",
        "-K1",
        *_time_limit(spec),
        f"--immediate={_STEP_CREATION_S}",
        f"--job-name={spec.name}",
        "--export=ALL",
        *site.srun_options,
        *(line.words if line is not None and inside else ()),
        *isolated_argv(
            agent.__file__,
            f"{TRIAL_VARIABLE}={spec.name}",
            *_VARIABLES,
            python=PYTHON if inside else "",
        ),
        *(("--", *spec.argv) if spec.argv else ()),
    ]


def srun_environment(
    spec: TrialSpec, site: Site, master_addr: str, environ: Mapping[str, str], cpus_per_node: int
) -> dict[str, str]:
    """The environment that srun is started with and hands to every rank.

    The trial's own settings win over the site's. ``master_addr`` is the address of the lease's
    first node, which gets rank 0.
    """
    inherited = scrubbed(environ)
    if line := started_container(spec, site):
        inherited = without_the_drivers_own(inherited, inside=line.runtime.inside)
    all_of_them = {
        **inherited,
        "OMP_NUM_THREADS": str(_cpus(spec, site, cpus_per_node)),  # default: a thread per core
        "PYTHONUNBUFFERED": "1",  # progress is seen by the growth of the logs
        **site.env,
        **spec.env,
        **rendezvous_environment(spec, master_addr),
    }
    return {name: value for name, value in all_of_them.items() if name not in _OF_STREAMS}


def started_container(spec: TrialSpec, site: Site) -> ContainerLine | None:
    """The words that start a trial's container; None if it has none.

    Raises SiteError if the site has no runtime, RuntimeRecordError if its record is wrong.
    """
    if spec.container is None:
        return None
    return container_line(spec, site.containers_for(spec.container.image), site.env)


def contained(spec: TrialSpec, site: Site) -> TrialSpec:
    """The trial as agents start it: agents outside its container start the wrapper.

    Raises as :func:`started_container`.
    """
    line = started_container(spec, site)
    if line is None or line.runtime.inside:
        return spec
    name = line.runtime.variable
    env = {name.format(name=key): value for key, value in variables(spec, site.env).items()}
    here = spec.workdir if spec.workdir and spec.workdir.is_dir() else None
    argv = (*line.words, *spec.argv) if spec.argv else ()
    return replace(spec, argv=argv, env=env, workdir=here)


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
    """A time limit after the trial's timeout; none for a step that is kept."""
    if math.isinf(spec.timeout_s):
        return []
    return [f"--time={math.ceil(spec.timeout_s / 60) + 1}"]


def _node_memory(spec: TrialSpec) -> str:
    """The value of srun's --mem, per node; 0: all the job's memory there."""
    if spec.memory_bytes_per_rank is None:
        return "0"
    return f"{math.ceil(spec.memory_bytes_per_rank * spec.ranks_per_node / 2**20)}M"
