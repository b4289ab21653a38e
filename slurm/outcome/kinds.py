"""How a trial can end."""

from __future__ import annotations

import enum


class Kind(enum.StrEnum):
    """How a trial ended. DESIGN's failure table decides what follows from each."""

    OK = "ok"
    OOM = "oom"
    HOST_OOM = "host_oom"
    INVALID = "invalid"
    DIVERGED = "diverged"
    TIMEOUT = "timeout"
    CRASH = "crash"
    NODE_FAILURE = "node_failure"
    LAUNCH_FAILURE = "launch_failure"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"  # stopped by us: the driver is ending

    @property
    def told(self) -> bool:
        """Whether the optimizer learns of it: it says something about the configuration."""
        return self not in _RETRIED

    @property
    def retried(self) -> bool:
        """Whether it says nothing about the configuration, so the same one runs again."""
        return self in _RETRIED


# Nobody asked for these ends, and they say nothing about the configuration.
BLAMELESS = frozenset({Kind.NODE_FAILURE, Kind.LAUNCH_FAILURE, Kind.PREEMPTED})
_RETRIED = BLAMELESS | {Kind.CANCELLED}
