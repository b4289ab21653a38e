"""A real Slurm for the tests of this folder, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm import minicluster as mini


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
    directory = Path(tempfile.gettempdir()) / f"meshtune-slurm-{os.getpid()}"
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


def _end_abandoned() -> None:
    """Stop the clusters of test sessions that were killed."""
    for directory in Path(tempfile.gettempdir()).glob("meshtune-slurm-*"):
        owner = directory.name.rpartition("-")[2]
        if owner.isdigit() and not Path("/proc", owner).exists():
            mini.down(directory)
