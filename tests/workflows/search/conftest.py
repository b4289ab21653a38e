from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from search_spaces import SearchSpace
from slurm.launcher import Launcher
from support.scripted_launcher import Drivers
from support.small_search import write_search
from workflows.search.budget import Budget
from workflows.search.driver import Driver, Listener

MakeDriver = Callable[..., Driver]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a small search to start."""
    write_search(tmp_path)
    return tmp_path


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    made = Drivers(tmp_path / "run")
    yield made
    made.close()


@pytest.fixture
def make_driver(drivers: Drivers, make_space: Callable[..., SearchSpace]) -> MakeDriver:
    """A driver of the toy space, or another, for six trials, or another number."""

    def make(
        launcher: Launcher,
        trials: int | None = 6,
        listen: Listener = lambda *_: None,
        space: SearchSpace | None = None,
    ) -> Driver:
        return drivers.make(space or make_space(), launcher, Budget(trials=trials), listen)

    return make
