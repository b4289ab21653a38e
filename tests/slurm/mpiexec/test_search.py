"""A search on hosts that mpiexec cannot use: it ends before its first trial, and says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis import read_run
from slurm.mpiexec.dialects import dialect_of


def search(folder: Path, environ: dict[str, str], hosts: str) -> subprocess.CompletedProcess[str]:
    """A search on these hosts, to its end."""
    (folder / "hostfile").write_text(hosts)
    (folder / "space.yaml").write_text(
        "version: 1\ncluster: {name: c, gpus_per_node: 1, memory_gib: 1, peak_fp32_tflops: 1}\n"
        "trainer: {command: [/bin/echo, 'MESHTUNE_RESULT {\"speed\": {mbs}}']}\n"
        "parameters: {mbs: [1, 2]}\nobjective: {maximize: speed}\nfinalists: false\n"
    )
    command = [sys.executable, "-m", "meshtune", "search", "space.yaml", "--run-dir", "run"]
    return subprocess.run(
        [*command, "--launcher", "mpiexec", "--hostfile", "hostfile"],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=250,
    )


@pytest.mark.skipif(os.getuid() != 0, reason="only root is refused")
def test_a_search_as_root_ends_before_its_first_trial_with_open_mpis_words_and_the_remedy(
    hosts: Any, tmp_path: Path
) -> None:
    said = subprocess.run(["mpiexec", "--version"], capture_output=True, text=True).stdout
    if not dialect_of(said).name.startswith("Open MPI"):
        pytest.skip("only Open MPI refuses root")
    environ = {k: v for k, v in hosts.environ.items() if "ALLOW_RUN_AS_ROOT" not in k}
    ended = search(tmp_path, environ, "node1\nnode2\n")
    assert ended.returncode == 1
    assert "has detected an attempt to run as root" in ended.stderr
    assert "OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1" in ended.stderr
    assert not read_run(tmp_path / "run").trials


def test_a_search_of_which_no_host_answers_ends_before_its_first_trial(
    hosts: Any, tmp_path: Path
) -> None:
    for host in ("node1", "node2"):
        hosts.strike(host)
    ended = search(tmp_path, hosts.environ, "node1\nnode2\n")
    assert ended.returncode == 1
    assert "reaches none of the hosts node1, node2" in ended.stderr
    assert "No route to host" in ended.stderr
    run = read_run(tmp_path / "run")
    assert not run.trials
    assert run.closed and run.closed.startswith("nothing could be started: mpiexec")
    assert "No route to host" in run.closed  # what `meshtune status` shows
