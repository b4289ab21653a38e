"""What a dry run, or a search, says where the nodes do not suffice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from analysis.run.folder import RunFolder
from search_spaces import SearchSpace
from slurm.local.launcher import LocalLauncher
from workflows.cli.main import main
from workflows.search.session import Search, dry_run


@pytest.mark.parametrize("flags", [["--dry-run"], []])
@pytest.mark.parametrize("launcher", [["simulate", "--simulate", "nodes=8"], ["mpiexec"]])
def test_on_too_few_nodes_for_any_trial_it_is_said_how_many_are_needed(
    launcher: list[str], flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if launcher == ["mpiexec"] and shutil.which("mpiexec") is None:
        pytest.skip("no mpiexec")
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("".join(f"node{i}\n" for i in range(8)))
    where = ["--run-dir", str(tmp_path / "run"), "--hostfile", str(hostfile)]
    asked = ["search", "gpt_175b_frontier", *flags, *where, "--launcher", *launcher]
    assert main(asked) == 2
    complaint = "the narrowest configuration needs 12 nodes, the launcher "
    assert f"{complaint}{launcher[0]} has 8" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_dry_run_prints_what_fits_and_says_that_it_is_all(
    make_space: Callable[..., SearchSpace], tmp_path: Path
) -> None:
    space = make_space(parameters="{num_nodes: [1, 4], tp: [1], mbs: [1, 2]}")
    with closing(LocalLauncher(2)) as launcher:
        lines = list(dry_run(Search(space, RunFolder(tmp_path / "run"), launcher, 0, "random")))
    assert len(lines) == 7  # a heading, the cost, two trials of one node, and this
    assert lines[-1] == "# no further configuration is left for 2 nodes"
