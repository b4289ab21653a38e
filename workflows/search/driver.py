"""The search loop: one thread decides, and one per running trial waits.

The loop writes each step to the journal before it takes it, so a driver that is killed at any
moment can be started again: :meth:`Driver.run` first settles what its predecessor left running.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial

from analysis import (
    Closed,
    Ended,
    Event,
    Identity,
    Journal,
    Opened,
    ResultsFile,
    Run,
    RunFolder,
    Started,
)
from foundation.quantities import counted
from search_spaces import SearchSpace
from slurm import BLAMELESS, Kind, Launcher, LauncherError, Lease, NodePool, Outcome
from workflows.optimizer.policy import Policy
from workflows.search.allocation import Allocation
from workflows.search.attempts import Attempts, LaunchFailures, Running, is_launch_failure
from workflows.search.budget import Budget
from workflows.search.early_stopping import EarlyStopping
from workflows.search.schedule import Schedule
from workflows.search.stopping import CONTINUE, DONE, FAILED, Ending, RepeatedFailures, is_nobodys
from workflows.search.storage import Storage
from workflows.search.trials import TrialFactory, ended

LOOKAHEAD = 4  # trials that may wait for nodes, so that narrow ones fill the gaps of a wide one
TICK_S = 1.0

Listener = Callable[[Event | str | None, "Driver"], None]


@dataclass(eq=False)
class Driver:
    """Runs a search on a launcher's nodes until its budget is spent."""

    space: SearchSpace
    folder: RunFolder
    journal: Journal  # locked by this process
    launcher: Launcher
    policy: Policy
    factory: TrialFactory
    budget: Budget
    seed: int  # written to the journal
    # called with the driver and each event once the journal has it, with each line of text that the
    # journal does not keep, and about once a second with None
    listen: Listener
    # of the folder, in the trials' names; None if no other run could have the same names
    identity: Identity | None = None

    def __post_init__(self) -> None:
        space, launcher = self.space, self.launcher
        self.pool = NodePool(launcher.nodes())
        self._storage = Storage(self._tell, lambda: self.stopping)
        self._schedule = Schedule(
            space, self.journal, self.pool, self.policy, self.budget, self._write
        )
        self._attempts = Attempts(launcher)
        self._waiting: set[int] = set()  # asked the pool for nodes
        self._early_stopping = EarlyStopping(space)
        self._failures = RepeatedFailures()
        self._launches = LaunchFailures()
        self._allocation = Allocation(launcher, self.pool, space.trial.timeout_s, self._tell)
        self._results = ResultsFile(self.folder)
        self._ending: Ending | None = None  # nothing more is started
        self._tells_of_sharing = space.trainer.preload is None  # once, if sharing begins unasked

    @property
    def running(self) -> dict[int, Running]:
        return self._attempts.running

    @property
    def stopping(self) -> bool:
        return self._attempts.stopping

    @property
    def state(self) -> Run:
        return self.journal.run

    # ---- from signal handlers and other threads ----

    def drain(self, ending: Ending) -> None:
        """Start nothing more; running trials end by themselves."""
        self._ending = self._ending or ending
        self._attempts.wake()

    def stop(self, ending: Ending) -> None:
        """Start nothing more and end running trials, which a resumed run repeats."""
        if not self.stopping:
            self._ending = ending
        self._attempts.stop()

    # ---- the loop ----

    def run(self) -> Ending:
        """Search until the budget is spent, the space is exhausted, or somebody stops it.

        Raises LauncherError if the launcher cannot work at all.
        """
        try:
            self._open()
            no_more = self._fill()
            while self.running or self._waiting or not (no_more or self._ending):
                self._wait()
                no_more = self._fill()
        except BaseException as error:
            self._attempts.abandon()
            with suppress(Exception):  # writing may be what failed
                self.journal.write(Closed(reason=_reason(error), code=FAILED))
            raise
        ending = self._final_ending(no_more)
        closed = Closed(**asdict(ending))
        self._write(closed)
        self._catch_up(now=True)
        self.listen(closed, self)
        return ending

    def _final_ending(self, no_more: Ending | None) -> Ending:
        ending = self._ending or no_more or Ending("", DONE)
        if ending.code == DONE and (wide := self._schedule.too_wide):
            reason = f"too few nodes are left for {counted(len(wide), 'trial')}"
            ending = Ending(reason, CONTINUE)
        stopped = ending.code == CONTINUE or (ending.code == FAILED and self.state.best is not None)
        if stopped and all(t.ended for t in self.state.trials.values()):
            # The last trial may have ended while the search was being stopped, or have lost the
            # last node. Remaining finalists may settle the winner in the next allocation.
            spent = self.budget.spent(self.state, self.journal.clock())
            settled = self._schedule.next_repeat() is None
            ending = spent if spent and settled else ending
        if ending.code == DONE and self.state.best is None:
            reason = f"{ending.reason}; {self.state.no_best}"
            ending = replace(ending, reason=reason, code=FAILED)
        return ending

    def _open(self) -> None:
        trials = self.state.trials.values()
        left_running = [(trial, attempt) for trial in trials if (attempt := trial.running)]
        own = [attempt.name for _, attempt in left_running if self._is_own(attempt.name)]
        if self.state.trials and self.space.program.preload:
            own.append(self.factory.mark)  # the steps that outlive their trials
        identity = asdict(self.identity) if self.identity else {}
        told = {"nodes": self.pool.nodes, "identity": identity}
        opened = Opened.of(self.space, self.launcher.name, self.seed, **told)
        self._write(opened)
        self.launcher.settle(own)
        for trial, attempt in left_running:
            outcome = self._left_behind(trial.number, attempt.name)
            self._end(trial.number, attempt.number, attempt.nodes, outcome)
        for trial in sorted(trials, key=lambda trial: trial.crashes):
            if not trial.ended:
                self._schedule.requeue(trial.number)
        self._early_stopping.update(self.state)
        self.listen(opened, self)

    def _is_own(self, name: str) -> bool:
        """Whether a trial belongs to this folder, not to one that this folder is a copy of."""
        return self.state.identity is None or name.startswith(f"{self.factory.run_id}-")

    def _left_behind(self, number: int, name: str) -> Outcome:
        """The outcome of an attempt whose driver was killed: its result if it has one."""
        outcome = Outcome.stated(self.folder.trial(number))
        copied = "it ran in the folder that this one is a copy of"
        message = "its driver was killed" if self._is_own(name) else copied
        # Not CANCELLED: a trial that kills its driver must not be tried for ever.
        return outcome or Outcome(Kind.PREEMPTED, message=message)

    def _fill(self) -> Ending | None:
        """Start the trials that can start now; returns why no more will, None if more may."""
        no_more = None
        self._check_allocation()
        while not self._ending:
            if self._paused_until_s < math.inf:
                return None
            for lease in self.pool.grants():
                self._waiting.discard(int(lease.trial))
                self._start(int(lease.trial), lease)
            if len(self.running) + len(self._waiting) >= self.launcher.max_concurrent:
                return None
            if self.pool.size == 0:
                # Another allocation has other nodes.
                code = FAILED if self.launcher.allocation_state() is None else CONTINUE
                self._ending = Ending("no usable node is left", code)
                break
            if not self.pool.free or len(self._waiting) >= LOOKAHEAD:
                return None
            started = {*self.running, *self._waiting}
            number = self._schedule.next(started, last=self._launches.trials)
            if isinstance(number, Ending):
                no_more = number
                break
            self._waiting.add(number)
            trial = self.state.trials[number]
            failed_on = {n for a in trial.attempts if a.kind in BLAMELESS for n in a.nodes}
            self.pool.request(str(number), self.space.num_nodes(trial.config), failed_on)
        if self._ending:
            for number in self._waiting:
                self.pool.withdraw(str(number))
            self._waiting.clear()
        return no_more

    def _start(self, number: int, lease: Lease) -> None:
        trial = self.state.trials[number]
        attempt = trial.next_attempt
        spec = self._storage.insist(lambda: self.factory.write(number, attempt, trial.config))
        if self.launcher.shares_launches and (kept := self.factory.kept(self.state)):
            spec = replace(spec, kept=kept)
            if self._tells_of_sharing:
                self._tells_of_sharing = False
                self._tell("starting takes longer than the steps: trials share launches now")
        repeat = trial.ended
        started = Started(
            trial=number, attempt=attempt, name=spec.name, nodes=lease.nodes, repeat=repeat
        )
        self._write(started)
        # A finalist runs all of its steps: it runs to be measured.
        stop_rule = None if repeat else partial(self._early_stopping.judge, trial.config)
        running = Running(number, attempt, lease, self._launches.wave)
        self._attempts.start(running, spec, stop_rule)
        self.listen(started, self)

    def _wait(self) -> None:
        if ended := self._attempts.next_end(TICK_S, self._paused_until_s):
            self._take_back(*ended)
        self._catch_up()
        self.listen(None, self)

    def _take_back(self, running: Running, outcome: Outcome) -> None:
        """Record an ended attempt, return its nodes, and stop a search whose trials all fail."""
        counts = False
        if outcome.excused:
            self._allocation.doubt()
        else:
            now_s = self.launcher.clock.monotonic()
            counts = self._launches.note(running.trial, outcome.kind, running.wave, now_s)
            if counts and self._launches.resume_s > now_s:
                wait_s = self._launches.resume_s - now_s
                self._tell(f"launches fail in a row: the next one in {wait_s:.0f} s")
            others_too = is_launch_failure(outcome.kind) and len(self._launches.trials) > 1
            outcome = replace(outcome, excused=others_too)
        end = self._end(running.trial, running.attempt, running.lease.nodes, outcome)
        for node in (*outcome.lost_nodes, *outcome.suspect_nodes):
            self.pool.remove(node)
        self.pool.release(running.lease)
        self._put_aside_too_wide()
        if counts and (ending := self._failures.note(end, self.state, outcome.suspect_nodes)):
            self.stop(ending)

    def _end(self, number: int, attempt: int, nodes: tuple[str, ...], outcome: Outcome) -> Ended:
        trial = self.state.trials[number]
        repeat = trial.ended  # its first result stands
        end = ended(self.space, trial, attempt, nodes, outcome)
        if is_nobodys(end, self.state):  # not the configuration's fault: run it again
            end = end.model_copy(update={"final": False})
        self._write(end)
        self._results.stale = True
        self._early_stopping.update(self.state, trial)
        if not end.final and not repeat:
            self._schedule.requeue(number)
        self.listen(end, self)
        return end

    @property
    def _paused_until_s(self) -> float:
        """Earliest start of a trial on the launcher's clock; inf if it may be now."""
        resume_s = max(self._allocation.resume_s, self._launches.resume_s)
        return resume_s if resume_s > self.launcher.clock.monotonic() else math.inf

    def _write(self, event: Event) -> None:
        self._storage.insist(lambda: self.journal.write(event))

    def _catch_up(self, *, now: bool = False) -> None:
        if trouble := self._results.catch_up(self.state, now=now):
            self._tell(f"{trouble}; the search continues")

    def _tell(self, text: str) -> None:
        self.listen(text, self)

    def _check_allocation(self) -> None:
        if self._ending:
            return
        if ending := self._allocation.check():
            self._ending = ending
            if self._allocation.gone:
                self._attempts.stop()
        self._put_aside_too_wide()

    def _put_aside_too_wide(self) -> None:
        """Put aside trials wider than all nodes left, for another allocation."""
        for name in self.pool.impossible():
            number = int(name)
            self._waiting.discard(number)
            if not self.state.trials[number].ended:
                self._schedule.too_wide.add(number)


def _reason(error: BaseException) -> str:
    """An error as the reason of a search's end, on one line."""
    what = "nothing could be started" if isinstance(error, LauncherError) else "error"
    return f"{what}: {' '.join(str(error).split()) or type(error).__name__}"
