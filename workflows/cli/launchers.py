"""Which launcher a command gets, and on how many nodes."""

from __future__ import annotations

import os
from argparse import Namespace

from analysis.run.fold import read_run
from analysis.run.folder import RunFolder
from analysis.units import counted
from search_spaces import SearchSpace
from slurm.launcher import Launcher
from workflows.cli.errors import UsageError


def make_launcher(name: str, num_nodes: int, site_name: str) -> Launcher:
    """The launcher of that name; ``num_nodes`` is what ``local`` pretends to have."""
    if name == "srun":
        from slurm.srun.launcher import SrunLauncher
        from slurm.srun.site import load_site

        return SrunLauncher(load_site(site_name))
    from slurm.local.launcher import LocalLauncher

    return LocalLauncher(num_nodes)


def launcher_name(asked: str | None) -> str:
    return asked or ("srun" if "SLURM_JOB_ID" in os.environ else "local")


def launcher_for(arguments: Namespace, space: SearchSpace, folder: RunFolder) -> Launcher:
    """The launcher of a search.

    Raises:
        UsageError: if the folder holds a simulated run and this one is real, or the reverse; or if
            nobody can mean this machine for so many ranks.
    """
    run = read_run(folder.path) if folder.started else None
    if arguments.launcher == "simulate":
        from slurm.simulated.cluster import EPOCH
        from workflows.simulation.workload import simulated_launcher

        if run and run.launcher not in ("", "simulate"):
            raise UsageError(
                f"{folder.path} holds a real run ({run.launcher}): choose another --run-dir"
            )
        return simulated_launcher(space, arguments.simulate, max(EPOCH, run.last_t if run else 0.0))
    if run and run.launcher == "simulate":
        raise UsageError(
            f"{folder.path} holds a simulated run: go on with --launcher simulate, or choose "
            "another --run-dir"
        )
    name, nodes = launcher_name(arguments.launcher), _widest(space)
    ranks, cores = nodes * space.cluster.gpus_per_node, os.cpu_count() or 1
    if name == "local" and arguments.launcher is None and ranks > max(8, 4 * cores):
        raise UsageError(
            f"{arguments.space}: a trial has up to {ranks} ranks, and this machine "
            f"{counted(cores, 'core')}; `meshtune submit` searches on a cluster, "
            "--launcher local insists on this machine"
        )
    return make_launcher(name, nodes, arguments.site)


def _widest(space: SearchSpace) -> int:
    """Nodes of the widest trial: what the local launcher pretends to have."""
    nodes = space.parameters.get("num_nodes")
    return max(int(value) for value in nodes.values) if nodes else 1
