"""A real Slurm for the tests of this folder, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm.minicluster import cluster as mini
from slurm.minicluster.config import runtime_folder


@pytest.fixture(scope="session")
def minicluster() -> Iterator[mini.Minicluster]:
    """A running minicluster of 8 nodes with 2 GPUs and 2 GiB each; ``SLURM_CONF`` names it.

    Tests leave it as they found it: no jobs, all nodes up.
    """
    if reason := mini.missing():
        if os.environ.get("CI"):
            pytest.fail(f"no Slurm to test on: {reason}")
        pytest.skip(reason)
    _end_abandoned()
    # Not pytest's own folder: a Unix socket's path must be short.
    directory = runtime_folder() / f"test-{os.getpid()}"
    cluster = mini.up(directory)
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(cluster.conf)
    try:
        yield cluster
    finally:
        if before is None:
            del os.environ["SLURM_CONF"]
        else:
            os.environ["SLURM_CONF"] = before
        if os.environ.get("MESHTUNE_KEEP_SLURM_LOGS"):
            shutil.copytree(directory / "log", f"{directory}-log")
        mini.down(directory)


@pytest.fixture(scope="session")
def allocate(minicluster: mini.Minicluster) -> Callable[[int], str]:
    """Makes a job without a script on so many nodes of the minicluster; gives its id."""

    def salloc(num_nodes: int) -> str:
        options = ["--no-shell", "--exclusive", "--mem=0", "--no-kill", "-t20"]
        said = subprocess.run(
            ["salloc", f"-N{num_nodes}", *options],
            capture_output=True, text=True, check=True, timeout=250,
        ).stderr  # fmt: skip
        return said.split("job allocation ")[1].split()[0]

    return salloc


def _end_abandoned() -> None:
    """Stop the clusters of test sessions that were killed."""
    for directory in runtime_folder().glob("test-*"):
        owner = directory.name.rpartition("-")[2]
        if owner.isdigit() and not Path("/proc", owner).exists():
            mini.down(directory)
