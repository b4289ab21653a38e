from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from slurm.minicluster.cluster import Minicluster
from slurm.srun import shell
from slurm.srun.allocation import Allocation
from slurm.srun.launcher import SrunLauncher
from slurm.srun.site import Site
from support.waiting import wait_for


@pytest.fixture(scope="module")
def launcher(minicluster: Minicluster, allocate: Callable[[int], str]) -> Iterator[SrunLauncher]:
    """The launcher, on four nodes of the minicluster."""
    job = allocate(4)
    yield SrunLauncher(Site.load("generic"), Allocation(job))
    shell.run(["scancel", job])
    wait_for(lambda: not minicluster.run("squeue", "-h"), "the job is gone")
