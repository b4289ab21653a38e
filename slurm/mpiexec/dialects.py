"""The options and habits of each `mpiexec`, as records; pure.

Measured on Open MPI 4.1.4 and 5.0.11, MPICH 4.0.2 (hydra) and, for a start only, Intel MPI 2021.19.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm.launcher import LauncherError


@dataclass(frozen=True)
class Dialect:
    name: str
    version: re.Pattern[str]  # found in what `mpiexec --version` prints
    options: tuple[str, ...]  # on every line
    host_flag: str  # followed by a list of hosts
    ranks_per_host_flag: str | None  # None: a host is listed once for each of its ranks
    export_flag: str  # names variables that ranks get
    export_list: bool  # whether the flag takes a list of names, or is repeated for each
    rank_variable: str
    local_rank_variable: str

    def argv(
        self,
        program: str,
        hosts: Sequence[str],
        ranks_per_host: int,
        exported: Sequence[str] = (),
    ) -> list[str]:
        """The line up to the command of the ranks. Rank 0 is on the first host.

        Consecutive ranks share a host. Every rank gets the ``exported`` variables of mpiexec's
        environment.
        """
        repeats = ranks_per_host if self.ranks_per_host_flag is None else 1
        line = [program, *self.options, "-n", str(len(hosts) * ranks_per_host)]
        line += [self.host_flag, ",".join(host for host in hosts for _ in range(repeats))]
        if self.ranks_per_host_flag is not None:
            line += [self.ranks_per_host_flag, str(ranks_per_host)]
        if self.export_list:
            return line + ([self.export_flag, ",".join(exported)] if exported else [])
        return line + [word for name in exported for word in (self.export_flag, name)]


# `seq` gives rank i the i-th host of the list. Every other mapping puts the driver's own host
# first, wherever it is listed, and rank 0 would not be where MASTER_ADDR says.
_SEQUENTIAL = ("--map-by", "seq:OVERSUBSCRIBE")  # a scheduler's slots are cores, not ranks
_UNBOUND = ("--bind-to", "none")  # the default is one core for each of few ranks

OPEN_MPI_4 = Dialect(
    name="Open MPI 4",
    version=re.compile(r"\((?:OpenRTE|Open MPI)\) [34]\."),
    options=(*_SEQUENTIAL, *_UNBOUND),
    host_flag="--host",
    ranks_per_host_flag=None,
    export_flag="-x",
    export_list=False,
    rank_variable="OMPI_COMM_WORLD_RANK",
    local_rank_variable="OMPI_COMM_WORLD_LOCAL_RANK",
)
OPEN_MPI_5 = replace(
    OPEN_MPI_4,
    name="Open MPI 5",
    version=re.compile(r"\(Open MPI\) (?:[5-9]|\d\d)\."),
)
MPICH = Dialect(
    name="MPICH",
    version=re.compile(r"HYDRA build details"),
    options=(),  # ranks are not bound, and hosts are taken in the order of the list
    host_flag="-hosts",
    ranks_per_host_flag="-ppn",
    export_flag="-genvlist",
    export_list=True,
    rank_variable="PMI_RANK",
    local_rank_variable="MPI_LOCALRANKID",
)
INTEL_MPI = replace(
    MPICH,
    name="Intel MPI",
    version=re.compile(r"Intel\(R\) MPI Library"),
    options=("-genv", "I_MPI_PIN", "0"),  # or ranks are bound to shares of the cores
)
DIALECTS = (OPEN_MPI_4, OPEN_MPI_5, MPICH, INTEL_MPI)


def dialect_of(program: str, version: str) -> Dialect:
    """The dialect of an mpiexec that prints this version.

    Raises LauncherError if it is none that is known.
    """
    for dialect in DIALECTS:
        if dialect.version.search(version):
            return dialect
    said = " ".join(version.split())[:100] or "nothing"
    raise LauncherError(
        f"{program} --version says {said!r}; the mpiexec launcher knows Open MPI from 3 on, MPICH "
        "(hydra) and Intel MPI: put one of them first on PATH"
    )
