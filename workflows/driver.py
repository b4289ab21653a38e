"""The search loop: one thread that decides, and one per running trial that waits.

Everything the loop does is in the journal before it is done, so a driver that is killed at any
moment can be started again: :meth:`Driver.run` first settles what its predecessor left running.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from analysis.finalists import next_repeat
from analysis.run import Run, Trial
from slurm.core import Kind, Launcher, Lease, Outcome, TrialSpec
from slurm.outcome import read_result
from slurm.pool import NodePool
from slurm.steps import Hopeless
from workflows.budget import Budget
from workflows.early import EarlyStop
from workflows.folder import RunFolder
from workflows.journal import Journal
from workflows.node_hours import NodeHours
from workflows.proposer import Proposal, Proposer
from workflows.space import SearchSpace
from workflows.trials import TrialFactory, journalled, judge

MAX_RETRIES = 3  # of a trial whose nodes, launch or driver failed
LOOKAHEAD = 4  # trials that may wait for nodes, so that narrow ones fill the gaps of a wide one
HOPELESS_STREAK = 8  # attempts in a row that crash or cannot start, with no success ever
END_MARGIN_S = 60.0  # before the allocation's end, for the report and the journal
TICK_S = 1.0
NODE_CHECK_S = 30.0
RESULTS_PAUSE = 20  # after writing results.csv, in times of what it took

DONE, FAILED, CONTINUE, INTERRUPTED = 0, 1, 3, 130


@dataclass(frozen=True)
class Ending:
    """Why the driver stopped, and the process's exit code."""

    reason: str
    code: int


@dataclass
class _Running:
    trial: int
    attempt: int
    lease: Lease


class Driver:
    """Runs a search on a launcher's nodes until its budget is spent.

    Args:
        space: what is searched.
        folder: the run's folder, created.
        journal: the run's journal, locked by this process.
        launcher: gives trials their processes.
        proposer: chooses configurations.
        factory: turns them into processes.
        budget: when to stop.
        seed: written to the journal.
        listen: called with (event, driver, trial's number or None) after each change, and about
            once a second; events are opened, started, ended and tick.
    """

    def __init__(
        self,
        space: SearchSpace,
        folder: RunFolder,
        journal: Journal,
        launcher: Launcher,
        proposer: Proposer,
        factory: TrialFactory,
        budget: Budget,
        seed: int,
        listen: Callable[[str, Driver, int | None], None],
    ) -> None:
        self.space = space
        self.folder = folder
        self.journal = journal
        self.launcher = launcher
        self.proposer = proposer
        self.factory = factory
        self.budget = budget
        self.seed = seed
        self.listen = listen
        self.pool = NodePool(launcher.nodes())
        self.running: dict[int, _Running] = {}
        self._waiting: set[int] = set()  # asked the pool for nodes
        self._again: deque[int] = deque()  # to be started (again)
        self._too_wide: set[int] = set()  # for what is left of this allocation
        self._settling: Ending | None = None  # the search is over, its finalists are not
        self._early = EarlyStop(space)
        self._node_hours = NodeHours(space, budget.node_hours)
        self._done: queue.SimpleQueue[tuple[_Running, Outcome] | None] = queue.SimpleQueue()
        self._ending: Ending | None = None  # nothing more is started
        self._stop = threading.Event()  # what runs is being ended
        self._streak = 0
        self._results_stale = False  # not all that ended is in results.csv
        self._results_due = 0.0  # on the machine's clock, also where time is virtual
        self._clock = launcher.clock
        self._nodes_checked = self._clock.monotonic()

    @property
    def stopping(self) -> bool:
        """Whether running trials are being ended."""
        return self._stop.is_set()

    @property
    def state(self) -> Run:
        """All that the journal says."""
        return self.journal.run

    # ---- from signal handlers and other threads ----

    def drain(self, ending: Ending) -> None:
        """Start nothing more; what runs may end by itself."""
        self._ending = self._ending or ending
        self._done.put(None)

    def stop(self, ending: Ending) -> None:
        """Start nothing more and end what runs; its trials run again when the run goes on."""
        self._ending = ending
        self._stop.set()
        self._done.put(None)

    # ---- the loop ----

    def run(self) -> Ending:
        """Search until the budget is spent, the space is exhausted, or somebody stops it.

        Raises:
            LauncherError: if the launcher cannot work at all.
        """
        self._open()
        try:
            no_more = self._fill()
            while self.running or self._waiting or not (no_more or self._ending):
                self._wait()
                no_more = self._fill()
        except BaseException:
            self._abandon()
            raise
        ending = self._final_ending(no_more)
        self.journal.write("closed", reason=ending.reason)
        self.folder.write_results(self.state)
        return ending

    def _final_ending(self, no_more: Ending | None) -> Ending:
        ending = self._ending or no_more or Ending("", DONE)
        if ending.code == DONE and self._too_wide:
            ending = Ending(f"{len(self._too_wide)} trials need more nodes than are left", CONTINUE)
        if ending.code == CONTINUE and all(t.ended for t in self.state.trials.values()):
            # The last trial may have ended while the search was being stopped.
            # Unless finalists are left: they may settle the winner in the next allocation.
            spent = self.budget.spent(self.state, self.journal.clock())
            ending = Ending(spent, DONE) if spent and self._next_repeat() is None else ending
        if ending.code == DONE and self.state.best is None:
            ending = Ending(f"{ending.reason}; no trial succeeded", FAILED)
        return ending

    def _open(self) -> None:
        left_running = [(t, t.running) for t in self.state.trials.values() if t.running]
        self.launcher.settle([attempt.name for _, attempt in left_running if attempt])
        self.journal.write(
            "opened",
            space=self.space.name,
            fingerprint=self.space.fingerprint,
            seed=self.seed,
            launcher=self.launcher.name,
            nodes=list(self.pool.nodes),
            **self.space.goals,
        )
        for trial, attempt in left_running:
            if attempt:
                self._end(trial.number, attempt.number, attempt.nodes, self._left_behind(trial))
        self._again.extend(t.number for t in self.state.trials.values() if not t.ended)
        self._again = deque(dict.fromkeys(self._again))
        self._early.update(self.state)
        self.listen("opened", self, None)

    def _left_behind(self, trial: Trial) -> Outcome:
        """How an attempt ended whose driver was killed: by its result if it has one."""
        outcome = read_result(self.folder.trial(trial.number))
        # Not CANCELLED: a trial that brings its driver down must not be tried for ever.
        return outcome or Outcome(Kind.PREEMPTED, message="its driver was killed")

    def _fill(self) -> Ending | None:
        """Start what the pool, the budget and the allocation allow.

        Returns:
            Why no further trial is started unless one has to run again; None if one may be.
        """
        no_more = None
        self._check_allocation()
        while not self._ending:
            self._grant()
            if len(self.running) + len(self._waiting) >= self.launcher.max_concurrent:
                return None
            if self.pool.size == 0:
                # Another allocation has other nodes.
                code = FAILED if self.launcher.time_left_s() is None else CONTINUE
                self._ending = Ending("no usable node is left", code)
                break
            if not self.pool.num_free or len(self._waiting) >= LOOKAHEAD:
                return None
            number = self._next()
            if isinstance(number, Ending):
                no_more = number
                break
            self._waiting.add(number)
            self.pool.request(str(number), self.space.num_nodes(self.state.trials[number].config))
        if self._ending:
            for number in self._waiting:
                self.pool.withdraw(str(number))
            self._waiting.clear()
        return no_more

    def _next(self) -> int | Ending:
        """The number of the next trial to start, or why there is none."""
        now = self.journal.clock()
        if spent := self.budget.resources_spent(self.state, now):
            return Ending(spent, DONE)
        for _ in range(len(self._again)):
            number = self._again.popleft()
            config = self.state.trials[number].config
            if self.space.num_nodes(config) > self.pool.size:
                self._too_wide.add(number)
            elif self._affordable(config):
                return number
            else:
                self._again.append(number)
        chosen = self._settling or self._propose()
        if isinstance(chosen, Ending) and chosen.code == DONE:
            repeated = self._next_repeat()
            if repeated is not None:
                self._settling = chosen  # what a repeat changes does not open the search again
                return repeated
        return chosen

    def _propose(self) -> int | Ending:
        """The number of a new trial, or why there is none."""
        if spent := self.budget.spent(self.state, self.journal.clock()):
            return Ending(spent, DONE)
        proposal = self.proposer.propose(self.state, self.pool.size)
        if proposal and (enough := self.budget.not_worth_it(proposal.expected)):
            return Ending(enough, DONE)
        if proposal and not self._affordable(proposal.config):
            proposal = self._narrower(proposal)
            if proposal is None:
                left = max(0.0, self._node_hours.left(self.state, self.journal.clock()))
                limit = f"budget: {self.budget.node_hours:g} node-hours"
                return Ending(f"{limit}, {left:.3g} left are too few for a further trial", DONE)
        if proposal is None:
            if self.proposer.propose(self.state, sys.maxsize) is None:
                return Ending("every valid configuration has been tried", DONE)
            size = self.pool.size
            return Ending(f"the configurations left need more than {size} nodes", CONTINUE)
        number = max(self.state.trials, default=0) + 1
        self.journal.write(
            "proposed",
            trial=number,
            config=proposal.config,
            by=proposal.by,
            why=proposal.why,
            expected=dict(proposal.expected),
        )
        return number

    def _narrower(self, proposal: Proposal) -> Proposal | None:
        """A proposal that ends within what is left of the node-hours; None without any.

        A search that knows nothing yet tries one trial all the same.
        """
        other: Proposal | None = proposal
        while other and not self._affordable(other.config):
            other = self.proposer.propose(self.state, self.space.num_nodes(other.config) - 1)
        nothing_yet = self.state.best is None and not self.running and not self._waiting
        return other or (proposal if nothing_yet else None)

    def _affordable(self, config: Mapping[str, Any]) -> bool:
        """Whether a trial is expected to end within what is left of the node-hours."""
        started = {*self.running, *self._waiting}
        return self._node_hours.affords(self.state, self.journal.clock(), started, config)

    def _next_repeat(self) -> int | None:
        """The finalist to be measured again; None if the winner is settled, or may be later.

        What still runs may win, so it comes first.
        """
        trials = self.state.trials
        busy = {*self.running, *self._waiting}
        rules = self.space.finalists
        if not rules.max_repeats or self.space.more_objectives:
            return None
        if any(not trials[number].ended for number in busy):
            return None
        trial = next_repeat(self.state, rules.confidence, rules.max_repeats, busy, self._repeatable)
        return None if trial is None else trial.number

    def _repeatable(self, trial: Trial) -> bool:
        lost = sum(a.repeat and a.kind in _BLAMELESS for a in trial.attempts)
        fits = self.space.num_nodes(trial.config) <= self.pool.size
        return lost <= MAX_RETRIES and fits and self._affordable(trial.config)

    def _grant(self) -> None:
        for lease in self.pool.grants():
            number = int(lease.trial)
            self._waiting.discard(number)
            self._start(number, lease)

    def _start(self, number: int, lease: Lease) -> None:
        trial = self.state.trials[number]
        attempt = len(trial.attempts) + 1
        spec = self.factory.write(number, attempt, trial.config)
        repeat = {"repeat": True} if trial.ended else {}
        self.journal.write(
            "started",
            trial=number,
            attempt=attempt,
            name=spec.name,
            nodes=list(lease.nodes),
            **repeat,
        )
        running = _Running(number, attempt, lease)
        self.running[number] = running
        # A finalist is measured whole: that is what it runs for.
        hopeless = None if repeat else partial(self._early.judge, trial.config)
        thread = threading.Thread(target=self._watch, args=(running, spec, hopeless), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a limit on threads
            self._done.put((running, Outcome(Kind.LAUNCH_FAILURE, message=str(error))))
        self.listen("started", self, number)

    def _watch(self, running: _Running, spec: TrialSpec, hopeless: Hopeless | None) -> None:
        """In a thread of its own: wait for a trial's end and report it, whatever happens."""
        try:
            outcome = self.launcher.run(spec, running.lease, self._stop, hopeless)
        except Exception as error:  # the loop must hear of it, or the lease is lost for good
            message = f"{type(error).__name__}: {error}"
            lost = () if self._settled(spec.name) else running.lease.nodes
            outcome = Outcome(Kind.LAUNCH_FAILURE, message=message, lost_nodes=lost)
        self._done.put((running, outcome))

    def _settled(self, name: str) -> bool:
        """Whether nothing of a trial is left whose launcher failed half-way."""
        try:
            self.launcher.settle([name])
        except Exception:
            return False
        return True

    def _wait(self) -> None:
        ended = self._clock.receive(self._done, TICK_S, len(self.running))
        if ended:
            running, outcome = ended
            del self.running[running.trial]
            self._end(running.trial, running.attempt, running.lease.nodes, outcome)
            for node in outcome.lost_nodes:
                self.pool.remove(node)
            for node in outcome.suspect_nodes:
                self.pool.quarantine(node)
            self.pool.release(running.lease)
            self._give_up_impossible()
        self._write_results()
        self.listen("tick", self, None)

    def _write_results(self) -> None:
        """Keep ``results.csv`` up to date, at a small share of the machine's time.

        All of it is written anew; once per trial, that would grow with the square of the trials.
        """
        begin = time.perf_counter()
        if self._results_stale and begin >= self._results_due:
            self.folder.write_results(self.state)
            self._results_stale = False
            end = time.perf_counter()
            self._results_due = end + RESULTS_PAUSE * (end - begin)

    def _end(self, number: int, attempt: int, nodes: tuple[str, ...], outcome: Outcome) -> None:
        trial = self.state.trials[number]
        kind, objectives, message = judge(self.space, outcome, trial.config)
        repeat = trial.ended  # its first result stands, whatever comes of this
        retries = sum(a.kind in _BLAMELESS for a in trial.attempts) + (kind in _BLAMELESS)
        final = not kind.retried or (kind in _BLAMELESS and retries > MAX_RETRIES)
        early: dict[str, Any] = {}
        if outcome.early and kind is Kind.OK:
            early = {"early": True, "saved_node_s": outcome.saved_s * len(nodes)}
        self.journal.write(
            "ended",
            trial=number,
            attempt=attempt,
            kind=str(kind),
            **journalled(objectives),
            result=_finite(outcome.result),
            message=message,
            stderr_tail=outcome.stderr_tail,
            elapsed_s=outcome.elapsed_s,
            nodes=list(nodes),
            final=final and not repeat,
            **early,
        )
        self._results_stale = True
        self._early.update(self.state, trial)
        if not final and not repeat:
            self._again.append(number)
        self.listen("ended", self, number)
        self._notice_hopeless(kind, message)

    def _notice_hopeless(self, kind: Kind, message: str) -> None:
        """End a search whose every trial fails the same way before it has cost the allocation."""
        if kind is Kind.CANCELLED:
            return
        self._streak = self._streak + 1 if kind in (Kind.CRASH, Kind.LAUNCH_FAILURE) else 0
        never = not any(t.ok for t in self.state.trials.values())  # seldom a long look
        # A launch that fails says nothing of its trial: eight in a row, and none will start.
        if self._streak >= HOPELESS_STREAK and (never or kind is Kind.LAUNCH_FAILURE):
            reason = f"the last {self._streak} trials failed alike ({kind}): {message}"
            self.stop(Ending(reason, FAILED if never else CONTINUE))

    def _check_allocation(self) -> None:
        left_s = self.launcher.time_left_s()
        trial = self.space.trial
        if not self._ending and left_s is not None and left_s < trial.timeout_s + END_MARGIN_S:
            reason = "a further trial could not end before the allocation"
            self._ending = Ending(reason, CONTINUE)
        if self._clock.monotonic() - self._nodes_checked >= NODE_CHECK_S:
            self._nodes_checked = self._clock.monotonic()
            for node in self.launcher.down_nodes():
                self.pool.remove(node)
            self._give_up_impossible()

    def _give_up_impossible(self) -> None:
        """Trials wider than what is left of the allocation wait for another one."""
        for name in self.pool.impossible():
            number = int(name)
            self._waiting.discard(number)
            if not self.state.trials[number].ended:
                self._too_wide.add(number)

    def _abandon(self) -> None:
        """Something went wrong in the loop itself: leave no process behind."""
        self._stop.set()
        while self.running:
            ended = self._clock.receive(self._done, None, len(self.running))
            if ended:
                del self.running[ended[0].trial]


_BLAMELESS = (Kind.NODE_FAILURE, Kind.LAUNCH_FAILURE, Kind.PREEMPTED)


def _finite(value: Any) -> Any:
    """Replace what JSON cannot hold by None."""
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
