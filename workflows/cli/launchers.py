"""Which launcher a command gets, and on how many nodes."""

from __future__ import annotations

import os
from argparse import Namespace

from analysis.run.fold import read_run
from analysis.run.folder import RunFolder
from analysis.units import counted
from search_spaces import SearchSpace
from slurm.launcher import Launcher, LauncherOptions
from slurm.registry import make_launcher
from workflows.cli.errors import UsageError


def launcher_name(asked: str | None) -> str:
    return asked or ("srun" if "SLURM_JOB_ID" in os.environ else "local")


def options_of(arguments: Namespace, num_nodes: int) -> LauncherOptions:
    """What the command line says of its launcher; ``num_nodes`` is what is needed at least."""
    return LauncherOptions(num_nodes, arguments.site, arguments.hostfile)


def launcher_for(arguments: Namespace, space: SearchSpace, folder: RunFolder) -> Launcher:
    """The launcher of a search.

    Raises:
        RegistryError: if there is no such launcher.
        UsageError: if the folder holds a simulated run and this one is real, or the reverse; or if
            nobody can mean this machine for so many ranks.
    """
    run = read_run(folder.path) if folder.started else None
    simulated = arguments.launcher == "simulate"
    if run and simulated and run.launcher not in ("", "simulate"):
        raise UsageError(
            f"{folder.path} holds a real run ({run.launcher}): choose another --run-dir"
        )
    if run and not simulated and run.launcher == "simulate":
        raise UsageError(
            f"{folder.path} holds a simulated run: resume it with --launcher simulate, or choose "
            "another --run-dir"
        )

    def simulate(_: LauncherOptions) -> Launcher:
        from slurm.simulated.cluster import EPOCH
        from workflows.simulation.workload import simulated_launcher

        return simulated_launcher(space, arguments.simulate, max(EPOCH, run.last_t if run else 0.0))

    name, nodes = launcher_name(arguments.launcher), _widest(space)
    ranks, cores = nodes * space.cluster.gpus_per_node, os.cpu_count() or 1
    if name == "local" and arguments.launcher is None and ranks > max(8, 4 * cores):
        raise UsageError(
            f"{arguments.space}: a trial has up to {ranks} ranks, and this machine "
            f"{counted(cores, 'core')}; `meshtune submit` searches on a cluster, "
            "--launcher local insists on this machine"
        )
    return make_launcher(name, options_of(arguments, nodes), {"simulate": simulate})


def _widest(space: SearchSpace) -> int:
    """Nodes of the widest trial: what the local launcher pretends to have."""
    nodes = space.parameters.get("num_nodes")
    return max(int(value) for value in nodes.values) if nodes else 1
