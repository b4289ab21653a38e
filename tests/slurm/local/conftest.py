from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from slurm import processes
from slurm.local.launcher import LocalLauncher
from slurm.trial import TrialSpec
from support.launched_trials import marked


@pytest.fixture
def launcher() -> Iterator[LocalLauncher]:
    with closing(LocalLauncher(num_nodes=2)) as local:
        yield local


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., TrialSpec]]:
    """Makes trials of a command; what a failed test left of them is ended afterwards."""

    def make(*argv: str, **changes: Any) -> TrialSpec:
        fields: dict[str, Any] = {
            "name": f"{tmp_path.name}-{os.getpid()}", "directory": tmp_path, "argv": argv,
            "num_nodes": 1, "ranks_per_node": 2, "timeout_s": 600.0, "grace_s": 5.0,
        }  # fmt: skip
        spec = TrialSpec(**{**fields, **changes})
        made.append(spec)
        return spec

    made: list[TrialSpec] = []
    yield make
    for spec in made:
        processes.send(marked(spec), signal.SIGKILL)
