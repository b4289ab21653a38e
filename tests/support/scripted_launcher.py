"""A launcher whose trials end as a script says, and drivers on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from analysis.run.folder import RunFolder
from analysis.run.journal import Journal
from search_spaces import SearchSpace
from slurm.launcher import Launcher
from slurm.outcome.classify import Outcome
from slurm.outcome.kinds import Kind
from slurm.outcome.step_log import StopRule
from slurm.trial import Lease, TrialSpec
from workflows.optimizer.registry import make_policy
from workflows.search.budget import Budget
from workflows.search.driver import Driver, Listener
from workflows.search.trials import TrialFactory

Script = Callable[[int, int, Lease], Outcome]  # trial, attempt, lease -> end


class ScriptedLauncher(Launcher):
    """Trials end as ``script`` says, at once or when ``gate`` opens; checks exclusive leases.

    Attributes:
        gate: open from the start; while it is closed, no trial ends.
        slow: trials for which alone the gate counts; None: all.
        success_s: how long a success takes, in which the search may stop it; a failure takes none.
        asked: by trial and attempt, whether somebody would judge its steps.
    """

    name = "scripted"

    def __init__(self, script: Script, num_nodes: int = 2) -> None:
        self.script = script
        self.names = [f"n{i}" for i in range(num_nodes)]
        self.gate = threading.Event()
        self.gate.set()
        self.slow: set[int] | None = None
        self.success_s = 0.0
        self.asked: dict[tuple[int, int], bool] = {}
        self.settled: list[str] = []
        self.left_s: float | None = None
        self.down: set[str] = set()
        self.most_at_once = 0
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self._running = 0

    def nodes(self) -> Sequence[str]:
        return self.names

    def command(self, spec: TrialSpec, lease: Lease) -> list[str]:
        return list(spec.argv)

    def run(
        self,
        spec: TrialSpec,
        lease: Lease,
        stop: threading.Event,
        stop_rule: StopRule | None = None,
    ) -> Outcome:
        number, attempt = (int(part) for part in spec.name.rsplit("-", 2)[1:])
        self.asked[number, attempt] = stop_rule is not None
        with self._lock:
            assert not self._held & set(lease.nodes), "a node in two leases"
            self._held |= set(lease.nodes)
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
        while self._waits(number) and not self.gate.wait(0.005) and not stop.is_set():
            pass
        with self._lock:
            self._held -= set(lease.nodes)
            self._running -= 1
        if stop.is_set():
            return Outcome(Kind.CANCELLED, message="stopped")
        outcome = self.script(number, attempt, lease)
        if outcome.kind is Kind.OK and stop.wait(self.success_s):
            return Outcome(Kind.CANCELLED, message="stopped")
        return outcome

    def settle(self, names: Iterable[str]) -> None:
        self.settled += names

    def down_nodes(self) -> set[str]:
        return self.down

    def time_left_s(self) -> float | None:
        return self.left_s

    def _waits(self, number: int) -> bool:
        return self.slow is None or number in self.slow


def ok(speed: float = 1.0) -> Outcome:
    return Outcome(Kind.OK, result={"speed": speed})


class Drivers:
    """Makes drivers of one run, each of which takes it over from the one before.

    Args:
        path: of the run's folder.
    """

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self._journal: Journal | None = None

    def make(
        self,
        space: SearchSpace,
        launcher: Launcher,
        budget: Budget,
        listen: Listener = lambda *_: None,
    ) -> Driver:
        """A driver that proposes at random."""
        self.folder.create(space)
        self.close()
        self._journal = Journal(self.folder.path)
        return Driver(
            space=space,
            folder=self.folder,
            journal=self._journal,
            launcher=launcher,
            policy=make_policy(space, 0, "random"),
            factory=TrialFactory(space, self.folder, "meshtune-test", None),
            budget=budget,
            seed=0,
            listen=listen,
        )

    def close(self) -> None:
        if self._journal:
            self._journal.close()
