"""Launchers by name: meshtune's own, and those of other distributions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from foundation.registry import Registry, RegistryError
from slurm.launcher import Launcher, LauncherError, LauncherOptions

LauncherFactory = Callable[[LauncherOptions], Launcher]

LAUNCHERS: Registry[LauncherFactory] = Registry(
    "launcher",
    "meshtune.launchers",
    {
        "local": "slurm.local.launcher:LocalLauncher.from_options",
        "srun": "slurm.srun.launcher:SrunLauncher.from_options",
        "mpiexec": "slurm.mpiexec.launcher:MpiexecLauncher.from_options",
    },
)


def make_launcher(
    name: str, options: LauncherOptions, more: Mapping[str, LauncherFactory] = MappingProxyType({})
) -> Launcher:
    """Make the launcher of that name; ``more`` are factories that only the caller has.

    Raises RegistryError if there is none, or its factory returns something else; LauncherError if
    it cannot work here.
    """
    factory = LAUNCHERS.get(name, more)
    if options.exclude and name != "srun":
        raise LauncherError(
            f"--exclude {options.exclude}: the launcher {name} takes no part of an allocation; for "
            "mpiexec leave the hosts out of --hostfile"
        )
    launcher = factory(options)
    if not isinstance(launcher, Launcher):
        raise RegistryError(
            f"launcher {name!r} is of type {type(launcher).__name__}; "
            "a factory returns a slurm.Launcher"
        )
    return launcher
