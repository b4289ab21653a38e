"""Who may import whom: packages, files and sub-packages depend on each other in one direction.

Imports are read from the source, those under ``TYPE_CHECKING`` and inside functions included.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from typing import NamedTuple

import pytest

from support.source_tree import (
    BELOW,
    ROOT,
    benchmarks,
    cycle,
    module_in,
    modules,
    name_of,
    names_in,
    parsed,
)

NOT_FOR_PRODUCT = ("benchmarks", "tests", "meshtune.testing")

# Imports that break a rule and are still to be removed, each as importer and imported.
KNOWN: set[tuple[str, str]] = set()

THROUGH_FACADES = tuple(name for name in BELOW if name != "foundation")
"""Packages that others import by what they export."""
PUBLIC = ("foundation.", "trainer.plan.", "slurm.logs.")
"""Modules that every package imports directly: the ground floor, the description of a job, and the
description of a trainer's logs, which records of trainers consist of."""


class Import(NamedTuple):
    """One import statement's module."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}, line {self.line}: imports {self.imported}"


@functools.cache
def every_import() -> tuple[Import, ...]:
    """Imports of all product modules; a name of a module of ours is cut to that module."""
    found = []
    stubs = [(name_of(file), file) for package in BELOW for file in (ROOT / package).rglob("*.pyi")]
    for module, file in [*modules().items(), *stubs]:  # a facade's stub says what it imports lazily
        for name, line in names_in(parsed(file), module, file.stem == "__init__"):
            found.append(Import(module, module_in(name, modules()), line))
    return tuple(found)


def modules_exported() -> set[str]:
    """Modules that a facade exports whole."""
    exported = set()
    for package in THROUGH_FACADES:
        stub = ast.parse((ROOT / package / "__init__.pyi").read_text())
        for node in stub.body:
            if isinstance(node, ast.ImportFrom) and node.module is None:
                exported |= {f"{package}.{alias.name}" for alias in node.names}
    return exported


def package_of(module: str) -> str:
    return module.split(".")[0]


def room_of(module: str) -> str:
    """The sub-package of a module; a file directly in a package stands for itself."""
    parts = module.split(".")
    return ".".join(parts[:2])


def imports() -> list[Import]:
    """All imports but those that are known to break a rule."""
    return [one for one in every_import() if (one.importer, one.imported) not in KNOWN]


def own_edges() -> list[tuple[str, str]]:
    return [(one.importer, one.imported) for one in imports() if one.imported in modules()]


def test_every_package_is_read() -> None:
    assert {"trainer", "slurm", "search_spaces", "analysis", "workflows"} <= modules().keys()
    assert ("trainer.train", "trainer.plan.config") in own_edges()


def test_packages_import_only_those_below_them() -> None:
    climbs = [
        str(one)
        for one in imports()
        if (package := package_of(one.imported)) in BELOW
        and package != package_of(one.importer)
        and package not in BELOW[package_of(one.importer)]
    ]
    assert not climbs


@pytest.mark.parametrize("package", THROUGH_FACADES)
def test_other_packages_are_imported_by_what_they_export(package: str) -> None:
    wrong = [
        str(one)
        for one in imports()
        if package_of(one.importer) == package != package_of(one.imported)
        and not one.imported.startswith(PUBLIC)
        and package_of(one.imported) in BELOW
        and one.imported != package_of(one.imported)
        and one.imported not in modules_exported()
    ]
    assert not wrong


def test_no_file_imports_itself_by_way_of_others() -> None:
    assert not cycle(own_edges())


@pytest.mark.parametrize("package", BELOW)
def test_sub_packages_import_each_other_in_one_direction(package: str) -> None:
    edges = [
        (room_of(importer), room_of(imported))
        for importer, imported in own_edges()
        if package_of(importer) == package_of(imported) == package
    ]
    assert not cycle(edges)


def test_product_code_imports_no_benchmarks_and_no_tests() -> None:
    wrong = [
        str(one)
        for one in imports()
        if f"{one.imported}.".startswith(tuple(f"{name}." for name in NOT_FOR_PRODUCT))
        and not one.importer.startswith("meshtune.testing")
    ]
    assert not wrong


def test_benchmarks_import_each_other_in_one_direction() -> None:
    """Files, and the folders of benchmarks."""
    edges = [
        (module, imported)
        for module, file in benchmarks().items()
        for name, _ in names_in(parsed(file), module, file.stem == "__init__")
        if (imported := module_in(name, benchmarks())) in benchmarks()
    ]
    assert ("benchmarks.search.judge", "benchmarks.search.games") in edges
    assert not cycle(edges)
    assert not cycle((room_of(importer), room_of(imported)) for importer, imported in edges)


def test_slurm_names_neither_torch_nor_deephyper() -> None:
    wrong = [
        str(one)
        for one in every_import()
        if package_of(one.importer) == "slurm"
        and package_of(one.imported) in ("torch", "deephyper")
    ]
    assert not wrong


@pytest.mark.parametrize("package", ["foundation", "trainer", "slurm"])
def test_importing_a_ground_package_loads_neither_torch_nor_deephyper(package: str) -> None:
    code = f"import sys, {package}; print(*{{'torch', 'deephyper'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_modules_that_call_themselves_torch_free_load_no_torch() -> None:
    free = [
        name
        for name, file in modules().items()
        if "orch-free" in (ast.get_docstring(ast.parse(file.read_text())) or "")
    ]
    assert {"trainer.plan.config", "trainer.plan.placement", "trainer.plan.exchange"} <= set(free)
    code = f"import sys, {', '.join(free)}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ([("a", "b"), ("b", "c"), ("a", "c")], ""),
        ([("a", "a"), ("b", "a")], ""),
        ([("a", "b"), ("b", "a"), ("c", "a")], "ab"),
        ([("e", "a"), ("b", "c"), ("c", "d"), ("d", "b")], "bcd"),
    ],
)
def test_a_cycle_is_found_wherever_it_is(edges: list[tuple[str, str]], expected: str) -> None:
    assert set(cycle(edges)) == set(expected)


def test_relative_imports_and_those_in_functions_are_read() -> None:
    tree = ast.parse("from . import a\nfrom ..b import c\ndef f():\n    import d.e")
    names = {name for name, _ in names_in(tree, "slurm.srun.shell", is_package=False)}
    assert names == {"slurm.srun.a", "slurm.b.c", "d.e"}
