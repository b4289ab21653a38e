"""README.md and docs/: links and paths lead somewhere, pages are found, the README stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
SOURCE = re.compile(
    r"`((?:analysis|benchmarks|search_spaces|slurm|tests|trainer|workflows)/[\w./-]*)`"
)
COMMAND = re.compile(r"python -m ((?:benchmarks|trainer)[\w.]*\w)")
OUTSIDE = ("http://", "https://", "mailto:")


def relative_links(page: Path) -> list[str]:
    """Targets of a page's links and images, those on the web left out."""
    targets = LINK.findall(CODE.sub("", page.read_text()))
    return [target for target in targets if not target.startswith(OUTSIDE)]


def target_file(page: Path, target: str) -> Path:
    path = target.partition("#")[0]
    return (page.parent / path).resolve() if path else page


def anchors(page: Path) -> set[str]:
    """A page's headings as GitHub spells their anchors."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_relative_link_and_image_exists(page: Path) -> None:
    missing = [link for link in relative_links(page) if not target_file(page, link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_anchor_is_a_heading_of_its_page(page: Path) -> None:
    lost = []
    for link in relative_links(page):
        anchor, target = link.partition("#")[2], target_file(page, link)
        if anchor and target.suffix == ".md" and anchor not in anchors(target):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_source_path_that_a_page_names_exists(page: Path) -> None:
    named = SOURCE.findall(page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_that_a_page_shows_can_be_run(page: Path) -> None:
    modules = [ROOT.joinpath(*module.split(".")) for module in COMMAND.findall(page.read_text())]
    runs = [m for m in modules if m.with_suffix(".py").exists() or (m / "__main__.py").exists()]
    assert runs == modules


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = {README}, [README]
    while waiting:
        page = waiting.pop()
        for link in relative_links(page):
            target = target_file(page, link)
            if target.suffix == ".md" and target.exists() and target not in reached:
                reached.add(target)
                waiting.append(target)
    assert {name(page) for page in PAGES} <= {name(page) for page in reached}


def test_the_docs_index_links_every_page_of_the_guide() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {target_file(index, link) for link in relative_links(index)}
    assert {*(ROOT / "docs" / "guide").glob("*.md")} <= linked


def test_every_picture_of_the_docs_is_shown() -> None:
    shown = {target_file(page, link) for page in PAGES for link in relative_links(page)}
    assert {*(ROOT / "docs" / "images").iterdir()} <= shown


def test_the_readme_has_at_most_900_words() -> None:
    assert len(README.read_text().split()) <= 900


def test_the_guide_stays_short() -> None:
    guide = {page.name: page.read_text() for page in (ROOT / "docs" / "guide").glob("*.md")}
    words = {name: len(text.split()) for name, text in guide.items() if name != "reference.md"}
    assert len(guide) <= 16
    assert sum(words.values()) <= 22_000
    assert words["spaces.md"] <= 1_300
