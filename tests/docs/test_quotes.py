"""The guide quotes what the terminal shows: every ``$ meshtune ...`` with its output."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from workflows import main

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
QUOTE = re.compile(r"^```console\n\$ meshtune ([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
QUOTES = [quote for page in sorted(GUIDE.glob("*.md")) for quote in QUOTE.findall(page.read_text())]
FIRST_SPACE = re.search(r"```yaml\n(.*?)```", (GUIDE / "spaces.md").read_text(), re.DOTALL)


@pytest.mark.parametrize(("arguments", "quoted"), QUOTES, ids=[q[0] for q in QUOTES])
def test_a_command_prints_what_the_guide_quotes(
    arguments: str,
    quoted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert FIRST_SPACE is not None
    (tmp_path / "llama.yaml").write_text(FIRST_SPACE[1])
    monkeypatch.chdir(tmp_path)
    assert main(arguments.split()) == 0
    assert capsys.readouterr().out == quoted


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
