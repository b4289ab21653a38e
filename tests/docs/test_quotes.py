"""The guide quotes what the terminal shows: every ``$ meshtune ...`` with its output."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
QUOTE = re.compile(r"^```console\n\$ meshtune ([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
QUOTES = [quote for page in sorted(GUIDE.glob("*.md")) for quote in QUOTE.findall(page.read_text())]
FIRST_SPACE = re.search(r"```yaml\n(.*?)```", (GUIDE / "spaces.md").read_text(), re.DOTALL)


@pytest.mark.parametrize(("arguments", "quoted"), QUOTES, ids=[q[0] for q in QUOTES])
def test_a_command_prints_what_the_guide_quotes(
    arguments: str, quoted: str, tmp_path: Path
) -> None:
    assert FIRST_SPACE is not None
    (tmp_path / "llama.yaml").write_text(FIRST_SPACE[1])
    command = [sys.executable, "-m", "meshtune", *arguments.split()]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert shown.stdout == quoted


def test_the_guide_quotes_the_first_steps() -> None:
    assert {quote[0].split()[0] for quote in QUOTES} == {"check", "predict"}
    assert len(QUOTES) >= 4


IMPORT = re.compile(r"^from ((?:analysis|meshtune|search_spaces|slurm)[\w.]*) import (.*)$", re.M)
IMPORTS = [
    found for page in sorted(GUIDE.glob("*.md")) for found in IMPORT.findall(page.read_text())
]


@pytest.mark.parametrize(("module", "names"), IMPORTS, ids=[module for module, _ in IMPORTS])
def test_what_the_guide_imports_is_there(module: str, names: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in names.split(", ") if not hasattr(found, name)] == []
