"""Running attempts, each with a thread that waits for it; pauses after failed launches."""

from __future__ import annotations

import math
import queue
import threading
from contextlib import suppress
from dataclasses import dataclass, replace

from foundation.files import is_disk_full
from slurm import AllocationState, Kind, Launcher, Lease, Outcome, StopRule, TrialSpec
from workflows.search.storage import no_room

# Kinds that may have an outside cause; a lost allocation leads to no others.
_DOUBTFUL = {kind for kind in Kind if kind.retried} - {Kind.CANCELLED} | {Kind.CRASH, Kind.TIMEOUT}


@dataclass
class Running:
    trial: int
    attempt: int
    lease: Lease
    wave: int  # failed launch waves before it


class Attempts:
    """Starts attempts and returns their outcomes, in the order of their ends.

    One thread uses it, except for :meth:`stop` and :meth:`wake`, which signal handlers call.
    """

    def __init__(self, launcher: Launcher) -> None:
        self.running: dict[int, Running] = {}  # by trial
        self._launcher = launcher
        self._ended: queue.SimpleQueue[tuple[Running, Outcome] | None] = queue.SimpleQueue()
        self._stop = threading.Event()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def start(self, running: Running, spec: TrialSpec, stop_rule: StopRule | None) -> None:
        self.running[running.trial] = running
        thread = threading.Thread(target=self._watch, args=(running, spec, stop_rule), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a limit on threads
            self._ended.put((running, Outcome(Kind.LAUNCH_FAILURE, message=str(error))))

    def next_end(
        self, timeout_s: float | None, until_s: float = math.inf
    ) -> tuple[Running, Outcome] | None:
        """The next attempt that ended; None after :meth:`wake`, or as in ``Clock.receive``."""
        ended = self._launcher.clock.receive(self._ended, timeout_s, len(self.running), until_s)
        if ended:
            del self.running[ended[0].trial]
        return ended

    def wake(self) -> None:
        self._ended.put(None)

    def stop(self) -> None:
        """End running attempts; :meth:`next_end` returns them as usual."""
        self._stop.set()
        self.wake()

    def abandon(self) -> None:
        """End running attempts and wait for them, so that no process is left behind."""
        self._stop.set()
        while self.running:
            self.next_end(None)

    def _watch(self, running: Running, spec: TrialSpec, stop_rule: StopRule | None) -> None:
        """Wait in this thread for an attempt's end; report one whatever happens."""
        try:
            outcome = self._launcher.run(spec, running.lease, self._stop, stop_rule)
        except Exception as error:  # the loop must know, or the lease is never released
            message = f"{type(error).__name__}: {error}"
            lost = running.lease.nodes
            with suppress(Exception):
                self._launcher.settle([spec.name])
                lost = ()  # nothing is left of an attempt whose launcher failed half-way
            kind = Kind.DISK_FULL if is_disk_full(error) else Kind.LAUNCH_FAILURE
            outcome = Outcome(kind, message=message, lost_nodes=lost)
        outcome = self._without_room(outcome, spec)
        self._ended.put((running, self._excused(outcome)))

    def _without_room(self, outcome: Outcome, spec: TrialSpec) -> Outcome:
        """The outcome, as DISK_FULL if there is no room: srun drops what it cannot write."""
        if outcome.kind not in (Kind.CRASH, Kind.TIMEOUT) or self._launcher.simulated:
            return outcome
        full = no_room(spec.directory)
        message = f"{full}; {outcome.message}"
        return replace(outcome, kind=Kind.DISK_FULL, message=message) if full else outcome

    def _excused(self, outcome: Outcome) -> Outcome:
        """The outcome, excused if the allocation is gone or the scheduler is silent."""
        if outcome.kind not in _DOUBTFUL:
            return outcome
        state = self._launcher.allocation_state()
        if state is AllocationState.GONE:
            message = f"the allocation is gone; {outcome.message}"
            return replace(outcome, kind=Kind.PREEMPTED, message=message, excused=True)
        silent = state is AllocationState.SILENT and outcome.kind is Kind.LAUNCH_FAILURE
        return replace(outcome, excused=True) if silent else outcome


# Eight failed launches in a row, which end a search, take two minutes: a restarted controller
# creates no step until the nodes have registered with it.
FIRST_PAUSE_S, LAST_PAUSE_S = 2.0, 60.0


def is_launch_failure(kind: Kind) -> bool:
    """Whether the next trial would fail likewise: no step can be created, the disk is full."""
    return kind.row.stops_search and not kind.observed


class LaunchFailures:
    """Failed launches since a trial last got its processes.

    Launches that were under way together fail together: they are one wave and count once.
    """

    def __init__(self) -> None:
        self.wave = 0  # number of failed waves so far
        self.trials: set[int] = set()  # whose launches failed since one succeeded
        self.resume_s = -math.inf  # earliest time of the next launch, on the clock of ``now_s``
        self._in_a_row = 0

    def note(self, trial: int, kind: Kind, wave: int, now_s: float) -> bool:
        """Note the end of an attempt begun in ``wave``; False if its failure is counted already."""
        together = wave < self.wave
        if not is_launch_failure(kind):
            if kind.observed and not together:  # its processes ran
                self.trials.clear()
                self._in_a_row = 0
            return True
        self.trials.add(trial)
        if together:
            return False
        self.wave += 1
        self._in_a_row += 1
        if self._in_a_row > 1:
            pause_s = min(LAST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._in_a_row - 2))
            self.resume_s = now_s + pause_s
        return True
