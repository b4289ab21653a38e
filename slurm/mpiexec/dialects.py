"""The options and habits of each `mpiexec`, as records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foundation.documents import read_document
from slurm.launcher import LauncherError


@dataclass(frozen=True)
class Dialect:
    """The options and habits of one mpiexec, explained in ``dialects.yaml``."""

    name: str
    version: str
    options: Sequence[str]
    host_flag: str
    export_flag: str
    rank_variable: str
    local_rank_variable: str
    ranks_per_host_flag: str | None = None
    export_list: bool = False

    def argv(self, hosts: Sequence[str], ranks_per_host: int, exported: Sequence[str]) -> list[str]:
        """The mpiexec line up to the ranks' command. Rank 0 is on the first host.

        Consecutive ranks share a host. Every rank gets the ``exported`` variables of mpiexec's
        environment.
        """
        repeats = ranks_per_host if self.ranks_per_host_flag is None else 1
        line = ["mpiexec", *self.options, "-n", str(len(hosts) * ranks_per_host)]
        line += [self.host_flag, ",".join(host for host in hosts for _ in range(repeats))]
        if self.ranks_per_host_flag is not None:
            line += [self.ranks_per_host_flag, str(ranks_per_host)]
        if self.export_list:
            return line + ([self.export_flag, ",".join(exported)] if exported else [])
        return line + [word for name in exported for word in (self.export_flag, name)]


DIALECTS = tuple(
    Dialect(**each) for each in read_document(Path(__file__).with_suffix(".yaml")).root.plain()
)
OPEN_MPI_4, OPEN_MPI_5, MPICH, INTEL_MPI = DIALECTS


def dialect_of(version: str) -> Dialect:
    """The dialect of an mpiexec that prints this version; raises LauncherError if unknown."""
    for dialect in DIALECTS:
        if re.search(dialect.version, version):
            return dialect
    said = " ".join(version.split())[:100] or "nothing"
    raise LauncherError(
        f"mpiexec --version says {said!r}; the mpiexec launcher knows Open MPI from 3 on, MPICH "
        "(hydra) and Intel MPI: put one of them first on PATH"
    )
