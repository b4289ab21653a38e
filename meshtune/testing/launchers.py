"""The contract of launchers, as tests.

A launcher's author subclasses one of the two suites in a test module and makes the launcher::

    from meshtune.testing.process_launchers import ProcessLauncherContract


    class TestKube(ProcessLauncherContract):
        @pytest.fixture
        def launcher(self):
            with closing(KubeLauncher(nodes=2)) as launcher:
                yield launcher

        def code(self, launcher):
            return "from acme.kube import KubeLauncher; launcher = KubeLauncher(nodes=2)"

:class:`LauncherContract` holds for all launchers, also for one that only simulates its trials;
:class:`ProcessLauncherContract` for those that start real processes.
"""

from __future__ import annotations

import itertools
import os
import queue
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm import Kind, Launcher, Lease, Outcome, StopRule, TrialSpec

DEADLINE_S = 300.0  # of every wait; far more than it takes
TRIAL_TIMEOUT_S = 600.0  # of trials that end for other reasons
MakeTrial = Callable[..., TrialSpec]

# Every rank first writes its process id, to a file that appears complete.
_HELLO = """
import json, os, signal, sys, time
from pathlib import Path
rank = os.environ["RANK"]
def write(name, text):
    Path("." + name).write_text(text)
    Path("." + name).rename(name)
write("pid" + rank, str(os.getpid()))
"""
SLEEP = "\ntime.sleep(600)\n"


class Running:
    """A trial that a launcher runs in a thread, as under the driver."""

    def __init__(self, launcher: Launcher, spec: TrialSpec, *start: Any, stopped: bool) -> None:
        self.name, self.ended = spec.name, False
        self.stop = threading.Event()
        if stopped:
            self.stop.set()
        self._launcher = launcher
        self._inbox: queue.SimpleQueue[Outcome | BaseException] = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(spec, *start), daemon=True).start()

    def outcome(self) -> Outcome:
        """The outcome, once it has ended, in the launcher's own time."""
        ended = self._launcher.clock.receive(self._inbox, DEADLINE_S, 1)
        assert ended is not None, f"run() did not return within {DEADLINE_S:g} s"
        if isinstance(ended, BaseException):
            raise ended
        self.ended = True
        return ended

    def _run(self, spec: TrialSpec, lease: Lease, stop_rule: StopRule | None) -> None:
        try:
            self._inbox.put(self._launcher.run(spec, lease, self.stop, stop_rule))
        except BaseException as error:
            self._inbox.put(error)


class LauncherContract:
    """Tests that every launcher passes."""

    @pytest.fixture
    def launcher(self) -> Launcher | Iterator[Launcher]:
        """The launcher, with at least one node that nobody else uses; closed afterwards."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `launcher`")

    @pytest.fixture
    def shared_folder(self, tmp_path: Path) -> Path:
        """A folder that this process and all nodes see under the same name."""
        return tmp_path

    @pytest.fixture
    def trial(self, launcher: Launcher, shared_folder: Path) -> Iterator[MakeTrial]:
        """Makes trials of Python code for :meth:`start`; running ones are ended afterwards."""
        made: list[str] = []
        self.tested = launcher
        self.running: list[Running] = []
        numbers = itertools.count(1)

        def make(*code: str, **changes: Any) -> TrialSpec:
            number = next(numbers)
            directory = shared_folder / f"trial{number}"
            directory.mkdir()
            fields: dict[str, Any] = {
                "name": f"{shared_folder.name}-{os.getpid()}-{number}",
                "directory": directory,
                "argv": (sys.executable, "-c", "".join([_HELLO, *map(textwrap.dedent, code)])),
                "num_nodes": 1,
                "ranks_per_node": 2,
                "timeout_s": TRIAL_TIMEOUT_S,
                "grace_s": 2.0,
            }
            spec = TrialSpec(**{**fields, **changes})
            made.append(spec.name)
            return spec

        yield make
        ended = {running.name for running in self.running if running.ended}
        if left := [name for name in made if name not in ended]:
            launcher.settle(left)

    def start(
        self,
        spec: TrialSpec,
        stop_rule: StopRule | None = None,
        first_node: int = 0,
        *,
        stopped: bool = False,
    ) -> Running:
        """Run a trial in a thread, on nodes from ``first_node`` on; ``stopped``: stop it first."""
        nodes = tuple(self.tested.nodes()[first_node : first_node + spec.num_nodes])
        lease = Lease(spec.name, nodes)
        self.running.append(Running(self.tested, spec, lease, stop_rule, stopped=stopped))
        return self.running[-1]

    def outcome(self, spec: TrialSpec, stop_rule: StopRule | None = None) -> Outcome:
        """Run a trial to its end."""
        return self.start(spec, stop_rule).outcome()

    def test_its_nodes_are_a_list_without_repeats_that_stays(self, launcher: Launcher) -> None:
        nodes = list(launcher.nodes())
        assert nodes
        assert len(set(nodes)) == len(nodes)
        assert list(launcher.nodes()) == nodes
        assert launcher.down_nodes() <= set(nodes)

    def test_it_has_a_name_and_runs_at_least_one_trial_at_once(self, launcher: Launcher) -> None:
        assert launcher.name
        assert launcher.max_concurrent >= 1

    def test_a_command_can_be_asked_for_and_nothing_happens(
        self, launcher: Launcher, trial: MakeTrial
    ) -> None:
        spec = trial()
        lease = Lease(spec.name, tuple(launcher.nodes()[:1]))
        command = launcher.command(spec, lease)
        assert command
        assert all(isinstance(word, str) for word in command)
        assert launcher.command(spec, lease) == command
        assert not list(spec.directory.iterdir())

    def test_a_trial_that_is_stopped_before_it_starts_is_cancelled(self, trial: MakeTrial) -> None:
        running = self.start(trial(SLEEP, grace_s=0.0), stopped=True)
        assert running.outcome().kind is Kind.CANCELLED

    def test_settling_what_never_ran_returns(self, launcher: Launcher) -> None:
        launcher.settle([])
        launcher.settle(["never-started"])
