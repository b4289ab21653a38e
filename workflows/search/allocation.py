"""Watches the allocation in which a search runs: its time, its nodes, its scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable

from slurm import AllocationState, Launcher, NodePool
from workflows.search.stopping import CONTINUE, Ending

END_MARGIN_S = 60.0  # before the allocation's end, for the report and the journal
CHECK_S = 30.0
SILENT_CHECK_S = 5.0
MAX_SILENCE_S = 1800.0


class Allocation:
    """Asks the launcher periodically whether trials can be started, and on which nodes.

    A trial's ``timeout_s`` must fit into the time left. Down nodes are taken out of the pool.

    Attributes:
        gone: it is over, and running trials end with it.
    """

    def __init__(
        self, launcher: Launcher, pool: NodePool, timeout_s: float, tell: Callable[[str], None]
    ) -> None:
        self._launcher, self._pool, self._timeout_s, self._tell = launcher, pool, timeout_s, tell
        self.gone = False
        self._next_check_s = -math.inf  # check before the first trial, too
        self._silent_since_s: float | None = None

    @property
    def resume_s(self) -> float:
        """Earliest start of a trial, on the launcher's monotonic clock."""
        return -math.inf if self._silent_since_s is None else self._next_check_s

    def doubt(self) -> None:
        """Make the next check ask at once: a trial ended as if the allocation were gone."""
        self._next_check_s = -math.inf

    def check(self) -> Ending | None:
        """Remove down nodes from the pool; returns why the search has to end, if it has."""
        left_s = self._launcher.time_left_s()
        if left_s is not None and left_s < self._timeout_s + END_MARGIN_S:
            return Ending("another trial would not end before the allocation", CONTINUE)
        if self._launcher.clock.monotonic() < self._next_check_s:
            return None
        state = self._launcher.allocation_state()
        now_s = self._launcher.clock.monotonic()
        if state is AllocationState.GONE:
            self.gone = True
            return Ending("the allocation is gone: cancelled, or over", CONTINUE)
        if state is AllocationState.SILENT:
            return self._silent(now_s)
        if self._silent_since_s is not None:
            self._tell("trials can be started again")
            self._silent_since_s = None
        self._next_check_s = now_s + CHECK_S
        for node in self._launcher.down_nodes():
            self._pool.remove(node)
        return None

    def _silent(self, now_s: float) -> Ending | None:
        if self._silent_since_s is None:
            self._silent_since_s = now_s
            self._tell(
                f"{AllocationState.SILENT.value}: no trial is started until that ends, "
                f"for up to {MAX_SILENCE_S / 60:.0f} minutes"
            )
        self._next_check_s = now_s + SILENT_CHECK_S
        if now_s - self._silent_since_s < MAX_SILENCE_S:
            return None
        minutes = f"{MAX_SILENCE_S / 60:.0f} minutes"
        reason = f"no trial could be started for {minutes}: {AllocationState.SILENT.value}"
        return Ending(reason, CONTINUE)
