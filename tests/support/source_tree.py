"""The source of the product and of the benchmarks, read for tests of its structure."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FLOORS: tuple[tuple[str, ...], ...] = (
    ("foundation",),
    ("trainer", "slurm"),
    ("search_spaces",),
    ("analysis",),
    ("workflows",),
    ("meshtune",),
)
"""Packages from the ground up; each imports those of the floors below it."""
BELOW = {
    package: frozenset(p for lower in FLOORS[:number] for p in lower)
    for number, floor in enumerate(FLOORS)
    for package in floor
}
"""What each package may import, besides itself."""


def name_of(file: Path) -> str:
    """The module of a file, such as ``slurm.srun.launcher``; for ``__init__`` the package."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def modules() -> dict[str, Path]:
    """All product modules by name."""
    files = [path for package in BELOW for path in (ROOT / package).rglob("*.py")]
    files += [path for package in BELOW if (path := ROOT / f"{package}.py").exists()]
    return {name_of(file): file for file in files}


def names_in(tree: ast.Module, module: str, is_package: bool) -> Iterator[tuple[str, int]]:
    """Full names of all imports with their lines: ``a.b`` for ``from a import b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = module.split(".")
                up = here[: len(here) - node.level + is_package]
                base = ".".join([*up, *([base] if base else [])])
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


@functools.cache
def benchmarks() -> dict[str, Path]:
    """All modules of the benchmarks by name."""
    return {name_of(file): file for file in (ROOT / "benchmarks").rglob("*.py")}


@functools.cache
def parsed(file: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(file.read_text(), str(file))


def module_in(name: str, known: Iterable[str]) -> str:
    """The known module that an imported name is of; the name itself if there is none."""
    parts = name.split(".")
    prefixes = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in known), name)


def cycle(edges: Iterable[tuple[str, str]]) -> list[str]:
    """One cycle of a graph, with its first node again at the end; empty if there is none."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for importer, imported in sorted(edges):
        if importer != imported:
            sorter.add(importer, imported)
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])[::-1]  # it lists what is imported first
    return []
