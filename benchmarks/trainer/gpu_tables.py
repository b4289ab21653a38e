"""Tables of a page that programs write and tests compare."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs/results/gpu-kernels.md"


def rows(name: str, page: Path = PAGE) -> list[list[str]]:
    """Cells of the table's rows, without its head."""
    lines = _found(name, page.read_text())[2].strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]


def write(name: str, head: str, found: Sequence[Sequence[object]], page: Path = PAGE) -> None:
    """Put rows in the place of the table's."""
    lines = [head, "|".join(["", *["---"] * (head.count("|") - 1), ""])]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in found]
    text = page.read_text()
    match = _found(name, text)
    page.write_text(text[: match.start(2)] + "\n" + "\n".join(lines) + "\n" + text[match.end(2) :])


def grouped(found: Iterable[dict[str, Any]]) -> list[list[object]]:
    """Rows of Triton's table: the most over a kernel's variants, by architecture."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in found:
        groups.setdefault((one["variant"][0], one["variant"][1]), []).append(one)
    return [
        [architecture, name.strip("_"), len(group)]
        + [max(one[key] for one in group) for key in ("registers", "spills", "shared")]
        for (architecture, name), group in groups.items()
    ]


def _found(name: str, text: str) -> re.Match[str]:
    match = re.search(rf"(<!-- {name} -->)(.*?)(<!-- end -->)", text, re.DOTALL)
    assert match is not None, f"no table {name}"
    return match
