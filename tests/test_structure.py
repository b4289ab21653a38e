"""The size and the style of the product: limits that keep it readable."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.source_tree import BELOW, ROOT, benchmarks, modules, parsed

FACADE_NAMES, FOLDER_MODULES, FILE_LINES, FUNCTION_LINES, LONG_FUNCTIONS = 150, 20, 400, 50, 10
FRAGMENTS = ("As", "Of", "Those", "What", "Where")
"""First words of a docstring that does not say what a thing is."""


def lines_of(file: Path) -> int:
    return len(file.read_text().splitlines())


Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions(tree: ast.Module) -> Iterator[Definition]:
    """The module, its classes and its functions."""
    return (node for node in ast.walk(tree) if isinstance(node, Definition))


def facade(package: str) -> tuple[str, ...]:
    """Names that a package exports."""
    stub = ROOT / package / "__init__.pyi"
    if not stub.exists():
        return ()
    imports = (node for node in parsed(stub).body if isinstance(node, ast.ImportFrom))
    return tuple(alias.name for node in imports for alias in node.names)


def test_facades_have_at_most_150_names_together() -> None:
    """A facade names what a package is for."""
    counts = {package: len(facade(package)) for package in BELOW}
    assert sum(counts.values()) <= FACADE_NAMES, counts


def test_no_folder_has_more_than_20_modules() -> None:
    counts = Counter(file.parent for file in modules().values() if file.stem != "__init__")
    wide = {str(folder.relative_to(ROOT)): n for folder, n in counts.items()}
    assert not {folder: n for folder, n in wide.items() if n > FOLDER_MODULES}


def test_no_file_has_more_than_400_lines() -> None:
    long = {name: lines_of(file) for name, file in modules().items()}
    assert not {name: count for name, count in long.items() if count > FILE_LINES}


def test_at_most_10_functions_have_more_than_50_lines() -> None:
    """Signature and docstring count."""
    long = [
        f"{module}.{node.name}: {node.end_lineno - node.lineno + 1}"
        for module, file in modules().items()
        for node in definitions(parsed(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
        if node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    ]
    assert len(long) <= LONG_FUNCTIONS, long


def fragments(tree: ast.Module) -> list[str]:
    """Beginnings of docstrings that start with one of ``FRAGMENTS``."""
    words = [(ast.get_docstring(node) or "").split() for node in definitions(tree)]
    return [" ".join(w[:8]) for w in words if w and w[0].rstrip(",.:;") in FRAGMENTS]


@pytest.mark.parametrize("package", [*BELOW, "benchmarks"])
def test_docstrings_say_what_a_thing_is(package: str) -> None:
    files = (ROOT / package).rglob("*.py")
    found = {str(file.relative_to(ROOT)): fragments(parsed(file)) for file in files}
    found = {file: lines for file, lines in found.items() if lines}
    assert not found


def test_a_docstring_that_is_a_fragment_is_found_wherever_it_is() -> None:
    text = '''"""Of a run."""
class A:
    """As it is."""
    def f(self):
        """Whatever it is."""
        async def g():
            """What, if any."""'''
    assert fragments(ast.parse(text)) == ["Of a run.", "As it is.", "What, if any."]


INDEX = ROOT / "benchmarks" / "README.md"


def commands() -> list[str]:
    """Benchmarks that can be run: packages with a ``__main__``, and modules that call main."""
    found = []
    for name, file in benchmarks().items():
        if file.stem == "__main__":
            found.append(name.removesuffix(".__main__"))
        elif 'if __name__ == "__main__":' in file.read_text():
            found.append(name)
    return sorted(found)


def test_every_benchmark_is_in_the_index() -> None:
    text = INDEX.read_text()
    assert len(commands()) > 20
    assert not [name for name in commands() if f"python -m {name}`" not in text]


def test_the_index_names_no_benchmark_that_there_is_not() -> None:
    rows = [line for line in INDEX.read_text().splitlines() if line.startswith("| `python -m ")]
    named = [row.split("`")[1].split()[2] for row in rows]
    assert sorted(named) == sorted(set(named))
    assert set(named) <= set(commands())
