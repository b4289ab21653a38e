"""Completion, as argcomplete's shell function asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("meshtune che", {"check"}),
        ("meshtune check gpt_175b_fr", {"gpt_175b_frontier", "gpt_175b_frontier_table4"}),
        ("meshtune check mi", {"mine.yaml"}),
        ("meshtune search tiny_cpu --policy sob", {"sobol"}),
        ("meshtune predict --cl", {"--cluster"}),
    ],
)
def test_the_shell_is_offered_commands_options_names_and_files(
    tmp_path: Path, line: str, offered: set[str]
) -> None:
    pytest.importorskip("argcomplete")
    (tmp_path / "mine.yaml").touch()
    answer = tmp_path / "answer"
    asks = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
        "IFS": "\v",
    }
    command = [sys.executable, "-m", "meshtune"]
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), *sys.path]))
    environ = {**os.environ, **asks, "PYTHONPATH": paths}
    subprocess.run(command, env=environ, cwd=tmp_path, timeout=250, check=True)
    assert set(answer.read_text().split("\v")) == offered
