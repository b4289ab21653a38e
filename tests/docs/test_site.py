"""mkdocs.yml: the site has every page once and loads nothing from the web."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"?(?:https?:)?//[^\">]*")


class Loader(yaml.SafeLoader):
    """A loader that leaves out what mkdocs makes of Python objects."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def pages(entries: list[Any]) -> list[str]:
    """Pages of a navigation, its sections opened."""
    found = []
    for entry in entries:
        found += (
            [entry] if isinstance(entry, str) else [p for s in entry.values() for p in pages(s)]
        )
    return found


def test_the_navigation_has_every_page_once() -> None:
    listed = pages(yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"])
    assert sorted(listed) == sorted(PAGES)


def test_a_strict_build_has_no_complaint_and_loads_nothing_from_the_web(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material, which `make docs` installs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert built.returncode == 0, built.stderr
    html = list(tmp_path.rglob("*.html"))
    assert len(html) >= len(PAGES)
    assert [found for page in html for found in LOADED.findall(page.read_text())] == []
