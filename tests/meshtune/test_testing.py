"""The contract suites are for authors of launchers and policies; the product runs without them."""

from __future__ import annotations

import re
from pathlib import Path

import meshtune

PACKAGES = ("trainer", "slurm", "search_spaces", "analysis", "workflows", "meshtune")
IMPORT = re.compile(r"(?m)^\s*(?:from|import) meshtune\.testing")


def test_nothing_but_tests_imports_the_contract_suites() -> None:
    root = Path(meshtune.__file__).parents[1]
    importing = [
        path
        for package in PACKAGES
        for path in (root / package).rglob("*.py")
        if path.parent.name != "testing" and IMPORT.search(path.read_text())
    ]
    assert importing == []
