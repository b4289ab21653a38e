"""docs/how-it-works/README.md: what its tables cite is there, files as well as names in them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-it-works" / "README.md").read_text()
CODE = re.compile(r"`([^`]+)`")
NAMES = re.compile(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)")  # `file`: `name`, `name`


def rows(heading: str) -> list[list[str]]:
    """Cells of the table under a heading, its head left out."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def defined(file: Path) -> set[str]:
    """What a module defines: functions, classes, constants, and what is in its classes."""
    found = set()

    def read(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    read(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(prefix + each.id for each in targets if isinstance(each, ast.Name))

    read(ast.parse(file.read_text()).body, "")
    return found


ADDITIONS = rows("What would I change to add ...")
QUESTIONS = rows("Twelve questions")


def test_every_sort_of_part_has_its_row() -> None:
    sorts = " ".join(row[0] for row in ADDITIONS)
    for sort in ("parallel axis", "failure kind", "launcher", "policy", "trainer", "section"):
        assert sort in sorts
    assert len(QUESTIONS) == 12


@pytest.mark.parametrize("row", ADDITIONS, ids=lambda row: row[0])
def test_the_files_and_the_test_of_an_addition_exist(row: list[str]) -> None:
    _, changed, cited = row
    files = [ROOT / path for path in CODE.findall(changed) if "/" in path]
    assert [path for path in files if not path.exists()] == []
    tests = [test.split("::") for test in CODE.findall(cited)]
    assert tests
    for file, name in tests:
        assert name in defined(ROOT / file), f"{file} has no {name}"


@pytest.mark.parametrize("row", QUESTIONS, ids=lambda row: row[0])
def test_the_names_that_answer_a_question_are_defined_where_it_says(row: list[str]) -> None:
    answers = NAMES.findall(row[1])
    assert answers
    for file, names in answers:
        assert set(CODE.findall(names)) <= defined(ROOT / file), f"{file} lacks some of {names}"
