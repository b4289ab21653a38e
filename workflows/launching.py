"""Which launcher a search gets, and on how many nodes."""

from __future__ import annotations

import os
from pathlib import Path

from analysis import Run, RunFolder, counted, read_run
from search_spaces import SearchSpace
from slurm import Launcher, LauncherOptions, make_launcher

MAX_RANKS = 4096  # on one machine, even for those who insist


class LaunchError(ValueError):
    """A search that cannot be launched as it was asked for; the message names the remedy."""


def launcher_name(asked: str | None) -> str:
    """The launcher that was asked for; default: srun inside a Slurm allocation, else local."""
    return asked or ("srun" if "SLURM_JOB_ID" in os.environ else "local")


def launcher_for(
    space: SearchSpace,
    folder: RunFolder,
    name: str | None = None,
    simulate: str = "",
    site: str = "generic",
    hostfile: Path | None = None,
) -> Launcher:
    """The launcher of a search.

    Args:
        space: to be searched.
        folder: of its run, which may be there already.
        name: see :func:`launcher_name`; ``simulate`` is the simulated cluster.
        simulate: its settings, ``KEY=VALUE,...``.
        site, hostfile: see ``LauncherOptions``.

    Raises:
        RegistryError: if there is no such launcher.
        LaunchError: if the folder holds a simulated run and this one is real, or the reverse; or if
            nobody can mean this machine for so many ranks.
    """
    if simulate and name != "simulate":
        raise LaunchError("settings of a simulated cluster go with the launcher 'simulate'")
    run = read_run(folder.path) if folder.started else None
    if run:
        _refuse_mixture(run, name)

    def simulated(_: LauncherOptions) -> Launcher:
        from workflows.simulation.workload import simulated_launcher

        return simulated_launcher(space, simulate, run.last_t if run else 0.0)

    nodes = space.widths[-1]  # what the local launcher pretends to have
    refuse_too_many_ranks(Path(space.file), name, nodes * space.ranks_per_node)
    options = LauncherOptions(nodes, site, hostfile)
    return make_launcher(launcher_name(name), options, {"simulate": simulated})


def refuse_too_many_ranks(file: Path, asked: str | None, ranks: int) -> None:
    """Raise LaunchError if nobody can mean this machine for the trials of a file.

    Args:
        file: that says how many ranks.
        asked: the launcher; None: nobody asked for one.
        ranks: of the largest trial.
    """
    cores = os.cpu_count() or 1
    if launcher_name(asked) == "local" and ranks > (MAX_RANKS if asked else max(8, 4 * cores)):
        here = ", `--launcher local` starts them here all the same" if ranks <= MAX_RANKS else ""
        raise LaunchError(
            f"{file}: a trial has up to {ranks} ranks, and this machine {counted(cores, 'core')}; "
            "`meshtune submit` searches on a cluster, `search --launcher simulate --dry-run` "
            f"shows the commands{here}"
        )


def _refuse_mixture(run: Run, name: str | None) -> None:
    """Simulated and real trials are never in one run."""
    if name == "simulate" and run.launcher not in ("", "simulate"):
        raise LaunchError(
            f"{run.directory} holds a real run ({run.launcher}): choose another run folder"
        )
    if name != "simulate" and run.launcher == "simulate":
        raise LaunchError(
            f"{run.directory} holds a simulated run: resume it with the launcher 'simulate', or "
            "choose another run folder"
        )
