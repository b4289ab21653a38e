"""Whole searches on a simulated cluster, for benchmarks: the real driver in a temporary folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from analysis.run.folder import RunFolder
from analysis.run.journal import Journal
from search_spaces import SearchSpace
from workflows.optimizer.policy import Policy
from workflows.search.budget import Budget
from workflows.search.driver import Driver, Listener
from workflows.search.trials import TrialFactory
from workflows.simulation.workload import simulated_launcher


@contextmanager
def simulated_driver(
    space: SearchSpace,
    options: str,
    policy: Policy,
    budget: Budget,
    seed: int,
    listen: Listener = lambda *_: None,
    sync: bool = False,
) -> Iterator[Driver]:
    """A driver whose run folder exists for the duration of the context.

    Args:
        space: the space to search.
        options: of the cluster; see ``docs/guide/simulate.md``.
        policy: chooses the trials.
        budget: the only limit at which the search ends.
        seed: of the cluster.
        listen: see ``Driver``.
        sync: whether every line of the journal is synced to the disk at once, as in a real run.
    """
    launcher = simulated_launcher(space, f"{options},seed={seed},time=1000h")
    with tempfile.TemporaryDirectory() as directory:
        folder = RunFolder(Path(directory) / "run")
        folder.create(space)
        with closing(Journal(folder.path, launcher.clock.time, sync=sync)) as journal:
            yield Driver(
                space=space,
                folder=folder,
                journal=journal,
                launcher=launcher,
                policy=policy,
                factory=TrialFactory(space, folder, "meshtune-simulated", "tokens"),
                budget=budget,
                seed=seed,
                listen=listen,
            )
