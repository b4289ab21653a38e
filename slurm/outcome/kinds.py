"""The kinds of ends of a trial, and what follows from each: the one table that all read.

A new kind is a row of :class:`Kind`. Its texts in logs stand there, too; texts that only a launcher
writes are in :class:`slurm.outcome.texts.LauncherTexts`, and ``workflows.search.trials.judge``
decides by metrics.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Literal

from foundation import out_of_memory as words


class Before(enum.Enum):
    """Evidence that a line in a log outweighs; see :func:`slurm.outcome.classify.classify`."""

    RESULT = "result"  # even the trainer's statement: a failing machine makes it state anything
    LAUNCH = "launch"  # and timeouts: one rank prints it, the others hang or are torn down
    TIMEOUT = "timeout"
    CRASH = "crash"  # nothing else


@dataclass(frozen=True)
class LogText:
    """A pattern that decides a kind, whatever the launcher.

    The outcome's message is the whole line of the match, or its group ``message``.
    """

    pattern: re.Pattern[str]
    before: Before
    stderr_only: bool = False  # else also in standard output and the result's message
    blames_node: bool = False  # makes the node of the first failed task suspect


@dataclass(frozen=True)
class Consequences:
    """Consequences of one kind of end."""

    words: str  # for it in the report
    # A machine's fault is not the trial's, which does not count; "driver": we ended it.
    cause: Literal["configuration", "machine", "driver"]
    observed_as: Literal["success", "failure"] | None  # by the optimizer; a failure is penalized
    retried: bool  # whether the same configuration runs again
    colour: Literal["green", "red", "gray"]  # in the report
    status: str | None = None  # in result.json: the trainer's own word for it
    texts: tuple[LogText, ...] = ()
    out_of: Literal["device memory", "host memory"] | None = None
    stops_search: bool = False  # after many in a row


# Linear in the length of a log: words within a line are sought from its start, each once (atomic
# groups), for a log may be made of nothing but their beginnings.
_DEVICE_OOM = words.any_of(words.DEVICE_OOM, words.DEVICE_OOM_IN_LOGS)
_HOST_OOM = words.any_of(words.HOST_OOM, words.HOST_OOM_IN_LOGS)
_BROKEN_DEVICE = re.compile(
    r"uncorrectable (?:ECC|NVLink) error|cudaErrorECCUncorrectable|hipErrorECCNotCorrectable"
    r"|GPU has fallen off the bus"
)
_ADDRESS_IN_USE = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
_INDIVISIBLE = re.compile(
    r"(?im)^(?>.*?(?=error))(?P<message>(?>error.*?world[ _]?size).*(?:not|must be) divisible.*)"
)
_DISK_FULL = re.compile(  # not of what is memory in truth
    r"(?m)^(?!.*(?:/dev/shm|/torch_|shared memory))"
    r".*(?:No space left on device|Disk quota exceeded).*"
)


class Kind(enum.StrEnum):
    """Kind of a trial's end, with its consequences.

    If texts of two kinds are in the same logs, the upper kind wins.
    """

    row: Consequences

    def __new__(cls, value: str, *row: Consequences) -> Kind:
        # Kind(value), the look-up, has no row.
        kind = str.__new__(cls, value)
        kind._value_ = value
        (kind.row,) = row
        return kind

    OK = "ok", Consequences("succeeded", "configuration", "success", False, "green", status="ok")
    OOM = (
        "oom",
        Consequences(
            "out of device memory", "configuration", "failure", False, "red",
            status="oom", texts=(LogText(_DEVICE_OOM, Before.LAUNCH),), out_of="device memory",
        ),
    )  # fmt: skip
    HOST_OOM = (
        "host_oom",
        Consequences(
            "out of host memory", "configuration", "failure", False, "red",
            texts=(LogText(_HOST_OOM, Before.LAUNCH),), out_of="host memory",
        ),
    )  # fmt: skip
    INVALID = (
        "invalid",
        Consequences(
            "refused by the trainer", "configuration", "failure", False, "red",
            status="invalid", texts=(LogText(_INDIVISIBLE, Before.CRASH, stderr_only=True),),
        ),
    )  # fmt: skip
    DIVERGED = (
        "diverged",
        Consequences("loss diverged", "configuration", "failure", False, "red", status="diverged"),
    )
    TIMEOUT = "timeout", Consequences("timed out or hung", "configuration", "failure", False, "red")
    CRASH = (
        "crash",
        Consequences(
            "crashed", "configuration", "failure", False, "red",
            status="error", stops_search=True,
        ),
    )  # fmt: skip
    NODE_FAILURE = (
        "node_failure",
        Consequences(
            "a node failed", "machine", None, True, "gray",
            texts=(LogText(_BROKEN_DEVICE, Before.RESULT, stderr_only=True, blames_node=True),),
        ),
    )  # fmt: skip
    LAUNCH_FAILURE = (
        "launch_failure",
        Consequences(
            "could not be launched", "machine", None, True, "gray",
            texts=(LogText(_ADDRESS_IN_USE, Before.TIMEOUT),), stops_search=True,
        ),
    )  # fmt: skip
    DISK_FULL = (
        "disk_full",
        Consequences(
            "found the disk full", "machine", None, True, "gray",
            texts=(LogText(_DISK_FULL, Before.TIMEOUT),), stops_search=True,
        ),
    )  # fmt: skip
    PREEMPTED = "preempted", Consequences("preempted", "machine", None, True, "gray")
    CANCELLED = "cancelled", Consequences("stopped with the search", "driver", None, True, "gray")

    @property
    def observed(self) -> bool:
        """Whether it is an observation for the optimizer: it depends on the configuration."""
        return self.row.observed_as is not None

    @property
    def retried(self) -> bool:
        """Whether the same configuration runs again."""
        return self.row.retried


BLAMELESS = frozenset(kind for kind in Kind if kind.row.cause == "machine")
"""Kinds that are the machine's fault: such ends do not count as trials."""

STATUSES = {status: kind for kind in Kind if (status := kind.row.status)}
"""Statuses that ``result.json`` may have, and the kinds that they mean."""
