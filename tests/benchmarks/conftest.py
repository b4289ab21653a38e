"""The benchmarks are no part of the distribution: they are found beside the tests."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))


@pytest.fixture
def truth(made: Any, tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder with a sweep of these layers and nodes, and with a file that is none."""

    def write(*landscapes: tuple[int, int]) -> Path:
        folder = tmp_path / "truth"
        folder.mkdir()
        every = [row for layers, nodes in landscapes for row in made.rows(layers, 8 * nodes)]
        made.write(folder / "sweep.csv", every)
        (folder / "notes.csv").write_text("a,b\n1,2\n")
        return folder

    return write
