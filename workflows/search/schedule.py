"""The order of trials: requeued ones, then new ones, then repeats of the finalists."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from analysis import Event, Journal, Run, Trial, next_repeat
from foundation import quantities
from foundation.quantities import counted
from search_spaces import SearchSpace
from slurm import NodePool
from workflows.optimizer.policy import Policy, Proposal
from workflows.search.budget import Budget, NodeHours
from workflows.search.stopping import CONTINUE, DONE, Ending
from workflows.search.trials import MAX_RETRIES, proposed


@dataclass(eq=False)
class Schedule:
    """Chooses the next trial to start, and writes new ones to the journal by ``_write``."""

    _space: SearchSpace
    _journal: Journal
    _pool: NodePool
    _policy: Policy
    _budget: Budget
    _write: Callable[[Event], None]

    def __post_init__(self) -> None:
        self.too_wide: set[int] = set()  # need more nodes than this allocation has left
        self._node_hours = NodeHours(self._space, self._budget.node_hours)
        self._requeued: deque[int] = deque()
        self._search_ended: Ending | None = None  # nothing new is proposed; repeats may be left

    @property
    def _run(self) -> Run:
        return self._journal.run

    def requeue(self, number: int) -> None:
        if number not in self._requeued:
            self._requeued.append(number)

    def next(self, started: Collection[int], last: Collection[int] = ()) -> int | Ending:
        """The number of the next trial to start, or why there is none.

        ``started`` trials run or wait for nodes; ``last`` ones run again only if there is nothing
        new to try. Until a trial has succeeded, those that crashed as every configuration would
        wait behind one that has not, alone: the first crash of them ends what else runs.
        """
        if spent := self._budget.resources_spent(self._run, self._journal.clock()):
            return spent
        trials = self._run.trials
        proven = any(t.ok for t in trials.values())  # a crash is its configuration's own
        crashed = {n for n in self._requeued if trials[n].crashes and not proven}
        again = self._again(started, set(self._requeued).difference(last, crashed))
        if again is not None:
            return again
        if crashed and started:
            return Ending("what runs shows whether every configuration crashes", CONTINUE)
        chosen = self._search_ended or self._propose(started)
        if not isinstance(chosen, Ending):
            return chosen
        again = self._again(started, {*last, *crashed})
        if again is None and chosen.code == DONE:
            again = self.next_repeat(started)
            if again is not None:
                self._search_ended = chosen  # a repeat's result does not reopen the search
        return chosen if again is None else again

    def _again(self, started: Collection[int], among: Collection[int]) -> int | None:
        """The first requeued trial that can be started; too wide ones are put aside."""
        for number in [n for n in self._requeued if n in among]:
            config = self._run.trials[number].config
            if self._space.num_nodes(config) > self._pool.size:
                self._requeued.remove(number)
                self.too_wide.add(number)
            elif self._affordable(config, started):
                self._requeued.remove(number)
                return number
        return None

    def _propose(self, started: Collection[int]) -> int | Ending:
        if spent := self._budget.spent(self._run, self._journal.clock()):
            return spent
        proposal = self._policy.propose(self._run, self._pool.size)
        if proposal and (enough := self._budget.not_worth_it(proposal.expected, self._run)):
            return enough
        if proposal and not self._affordable(proposal.config, started):
            proposal = self._narrower(proposal, started)
            if proposal is None:
                left = max(0.0, self._node_hours.left(self._run, self._journal.clock()))
                limit = f"budget: {counted(self._budget.node_hours or 0.0, 'node-hour')}"
                few = f"{quantities.number(left)} left are too few for a further trial"
                return Ending(f"{limit}, {few}", DONE, "node_hours")
        if proposal is None:
            if self._policy.propose(self._run, sys.maxsize) is None:
                return Ending("every valid configuration has been tried", DONE)
            size = counted(self._pool.size, "node")
            return Ending(f"the configurations left need more than {size}", CONTINUE)
        event = proposed(self._run, proposal)
        self._write(event)
        return event.trial

    def _narrower(self, proposal: Proposal, started: Collection[int]) -> Proposal | None:
        """A proposal that should end within the node-hours left; None if there is none.

        A search without any result tries one trial all the same.
        """
        other: Proposal | None = proposal
        while other and not self._affordable(other.config, started):
            other = self._policy.propose(self._run, self._space.num_nodes(other.config) - 1)
        nothing_yet = self._run.best is None and not started
        return other or (proposal if nothing_yet else None)

    def _affordable(self, config: Mapping[str, Any], started: Collection[int]) -> bool:
        return self._node_hours.affords(self._run, self._journal.clock(), started, config)

    def next_repeat(self, started: Collection[int] = ()) -> int | None:
        """The finalist to measure again; None if the winner is settled, or while new trials run.

        A running trial may still win, so it comes first.
        """
        trials = self._run.trials
        rules = self._space.finalists
        if not rules.max_repeats or self._space.more_objectives:
            return None
        if any(not trials[number].ended for number in started):
            return None

        def possible(trial: Trial) -> bool:
            lost = sum(a.repeat and a.costs_retry for a in trial.attempts)
            fits = self._space.num_nodes(trial.config) <= self._pool.size
            return lost <= MAX_RETRIES and fits and self._affordable(trial.config, started)

        trial = next_repeat(self._run, rules.confidence, rules.max_repeats, started, possible)
        return None if trial is None else trial.number
