"""Launchers by name, and single trials on them."""

from __future__ import annotations

import os
import re
import signal
import threading
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from analysis import RunFolder, read_run
from foundation.quantities import counted
from search_spaces import SearchSpace
from slurm import Launcher, LauncherOptions, Lease, Outcome, StopRule, TrialSpec, make_launcher
from workflows.search.reporting import drop_closed_output, ending_signals

OLDEST_TORCH = "2.13"  # that the built-in trainer runs with
MAX_RANKS = 4096  # on one machine, even if `--launcher local` asks for it

_ELSEWHERE = {  # where a run was made, and how it is resumed in this shell
    "srun": "a run of a Slurm allocation, and this shell is in none: resume it with "
    "`meshtune submit`, or inside salloc; `--launcher local` runs trials here",
    "local": "a run of one machine alone, and this shell is in a Slurm allocation: `--launcher "
    "local` resumes it on this node, `--launcher srun` on the allocation's nodes",
}


class LaunchError(ValueError):
    """The search cannot be launched like this; the message names the remedy."""


def launcher_name(asked: str | None) -> str:
    """The launcher's name; default: srun inside a Slurm allocation, else local."""
    return asked or ("srun" if "SLURM_JOB_ID" in os.environ else "local")


def launcher_for(
    space: SearchSpace,
    folder: RunFolder,
    name: str | None = None,
    simulate: str = "",
    options: LauncherOptions | None = None,
    only_shows: bool = False,
) -> Launcher:
    """The launcher of a search, whose folder may exist already; see :func:`launcher_name`.

    ``simulate`` has the simulated cluster's settings, ``KEY=VALUE,...``; ``only_shows``: no trials.

    Raises RegistryError if there is no such launcher, LaunchError if it cannot run this search.
    """
    if simulate and name != "simulate":
        raise LaunchError("settings of a simulated cluster go with the launcher 'simulate'")
    run = read_run(folder.path) if folder.started else None
    was = run.launcher if run else ""
    if name == "simulate" and was not in ("", "simulate"):
        raise LaunchError(f"{folder.path} holds a real run ({was}): choose another run folder")
    if name != "simulate" and was == "simulate":
        raise LaunchError(
            f"{folder.path} holds a simulated run: resume it with the launcher 'simulate', or "
            "choose another run folder"
        )
    here = launcher_name(name)
    if {was, here} == {"local", "srun"} and not (name or only_shows):
        raise LaunchError(f"{folder.path} holds {_ELSEWHERE[was]}")

    def simulated(_: LauncherOptions) -> Launcher:
        from workflows.simulation.workload import simulated_launcher

        return simulated_launcher(space, simulate, run.last_t if run else 0.0)

    if name != "simulate" and space.trainer.builtin is not None and not _has_torch():
        raise LaunchError(
            f"{space.file}: the built-in trainer needs PyTorch {OLDEST_TORCH} or later: "
            "pip install 'meshtune[trainer]'"
        )
    if here == "local" and (missing := space.unmeasured()):
        raise LaunchError(
            f"{space.file}: this machine cannot measure {missing}; search on nodes that can, let a "
            "trainer of your own report energy_joules, or remove it"
        )
    nodes = space.widths[-1]  # as many as the local launcher pretends to have
    refuse_too_many_ranks(Path(space.file), name, nodes * space.ranks_per_node)
    options = options or LauncherOptions(nodes)
    return make_launcher(here, options, {"simulate": simulated})


def _has_torch() -> bool:
    try:
        found = version("torch") if find_spec("torch") else ""
    except (PackageNotFoundError, ValueError):  # torch has no version, or is blocked
        return False
    return _release(found) >= _release(OLDEST_TORCH)


def _release(text: str) -> list[int]:
    """Major and minor number of a version, which compare: [2, 14] of 2.14.0a0+cpu."""
    return [int(part) for part in re.findall(r"\d+", text)[:2]]


def refuse_too_many_ranks(file: Path, asked: str | None, ranks: int) -> None:
    """Raise LaunchError, with the file, if this machine is too small for the largest trial."""
    cores = os.cpu_count() or 1
    if launcher_name(asked) == "local" and ranks > (MAX_RANKS if asked else max(8, 4 * cores)):
        here = ", `--launcher local` starts them here anyway" if ranks <= MAX_RANKS else ""
        raise LaunchError(
            f"{file}: a trial has up to {ranks} ranks, and this machine {counted(cores, 'core')}; "
            "`meshtune submit` searches on a cluster, `search --launcher simulate --dry-run` "
            f"shows the commands{here}"
        )


def first_nodes(launcher: Launcher, spec: TrialSpec) -> Lease:
    """A lease of the launcher's first nodes, for a single trial."""
    return Lease(spec.name, tuple(launcher.nodes()[: spec.num_nodes]))


def run_alone(
    launcher: Launcher, spec: TrialSpec, lease: Lease, stop_rule: StopRule | None = None
) -> Outcome:
    """Run a single trial; from now on INT, TERM and HUP end its ranks on all nodes."""
    stop = threading.Event()

    def end(*_: object) -> None:
        drop_closed_output()
        stop.set()

    for number in ending_signals():
        signal.signal(number, end)
    return launcher.run(spec, lease, stop, stop_rule)
