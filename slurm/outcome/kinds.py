"""The kinds of ends of a trial and their consequences, in one table.

A new kind is a row of :class:`Kind`, with its texts in logs; texts that only a launcher writes are
in :class:`slurm.outcome.texts.LauncherTexts`. ``workflows.search.trials.judge`` decides by metrics.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from foundation import out_of_memory as words


class Before(enum.Enum):
    """Evidence that a line in a log outweighs; see :func:`slurm.outcome.classify.classify`."""

    RESULT = "result"  # even the trainer's statement: on a failing machine it may state anything
    LAUNCH = "launch"  # and timeouts: one rank prints it, the others hang or are killed
    TIMEOUT = "timeout"
    CRASH = "crash"  # only a crash


@dataclass(frozen=True)
class LogText:
    """A pattern that decides a kind, whatever the launcher.

    The outcome's message is the whole line of the match, or its group ``message``.
    """

    pattern: re.Pattern[str]
    before: Before
    stderr_only: bool = False  # otherwise also in standard output and the result's message
    # in standard error only the exception that ended the first rank, if that is known
    exception_only: bool = False


@dataclass(frozen=True)
class Consequences:
    """Consequences of one kind of end."""

    words: str  # its name in the report
    # "machine": such an end does not count as a trial; "driver": the driver ended it
    cause: Literal["success", "configuration", "machine", "driver"] = "configuration"
    status: str | None = None  # the trainer's name for it in result.json
    text: LogText | None = None
    out_of: Literal["device memory", "host memory"] | None = None
    stops_search: bool = False  # after many in a row

    @property
    def colour(self) -> Literal["green", "red", "gray"]:
        return _COLOURS.get(self.cause, "gray")


_COLOURS: Mapping[str, Literal["green", "red"]] = {"success": "green", "configuration": "red"}
# Linear in the length of a log, which may consist of beginnings of matches only: words within a
# line are searched from its start, each once (atomic groups).
_DEVICE_OOM = LogText(words.any_of(words.DEVICE_OOM, words.DEVICE_OOM_IN_LOGS), Before.LAUNCH)
_HOST_OOM = LogText(words.any_of(words.HOST_OOM, words.HOST_OOM_IN_LOGS), Before.LAUNCH)
_BROKEN_DEVICE = LogText(
    re.compile(
        r"uncorrectable (?:ECC|NVLink) error|cudaErrorECCUncorrectable|hipErrorECCNotCorrectable"
        r"|GPU has fallen off the bus"
    ),
    Before.RESULT,
    stderr_only=True,
)
# Beginning of a line that is no warning (a warning is no cause of an end; torch's begin with [W).
_NO_WARNING = r"(?:(?!\bWARN(?:ING)?\b|\b[Ww]arning:).)*?"
_LINE = rf"(?m)^(?!(?:\[rank\d+\]: ?)?\[W[\d ]){_NO_WARNING}"
_IN_USE = re.compile(_LINE + r"(?:EADDRINUSE|[Aa]ddress already in use|\[Errno 98\])")
_ADDRESS_IN_USE = LogText(_IN_USE, Before.TIMEOUT)
_DIVISIBLE = r"(?:not|must be|should be) (?:evenly )?(?:divisible|(?:a )?multiple of)"
_REFUSED = LogText(  # the words of Megatron-LM, DeepSpeed, torchtitan and others
    re.compile(
        r"(?im)^(?>.*?(?=error))(?:"
        rf"(?=.*(?:world[ _]?size|parallel|batch[ _]?size|\b[tpdce]p\b)).*{_DIVISIBLE}.*"
        r"|error: \d+ is not divisible by \d+\s*$"  # Megatron Core's ensure_divisibility
        r"|error: Invalid parallel dims.*|error: Check batch related parameters.*)"
    ),
    Before.CRASH,
    stderr_only=True,
    exception_only=True,
)
_DISK_FULL = LogText(
    re.compile(  # except on file systems that are memory
        r"(?m)^(?!.*(?:/dev/shm|/torch_|shared memory))"
        + _LINE.removeprefix("(?m)")
        + r"(?:No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]).*"
    ),
    Before.TIMEOUT,
)
_CHILD_KILLED = LogText(  # torchrun's first failed process was killed by a signal
    re.compile(
        r"Root Cause \(first observed failure\):\n(?:.{0,300}\n){1,8}?"
        r".{0,30}(?P<message>Signal (?:9|15) \(SIG(?:KILL|TERM)\) received by PID.*)"
    ),
    Before.CRASH,
)


class Kind(enum.StrEnum):
    """Kind of a trial's end, with its consequences.

    If texts of two kinds are in the same logs, the upper kind wins.
    """

    row: Consequences

    def __new__(cls, value: str, *row: Consequences) -> Kind:
        # The look-up Kind(value) passes no row.
        kind = str.__new__(cls, value)
        kind._value_ = value
        (kind.row,) = row
        return kind

    OK = "ok", Consequences("succeeded", "success", status="ok")
    OOM = (
        "oom",
        Consequences(
            "out of device memory", status="oom", text=_DEVICE_OOM, out_of="device memory"
        ),
    )
    HOST_OOM = (
        "host_oom",
        Consequences("out of host memory", text=_HOST_OOM, out_of="host memory"),
    )
    INVALID = ("invalid", Consequences("refused by the trainer", status="invalid", text=_REFUSED))
    DIVERGED = "diverged", Consequences("loss diverged", status="diverged")
    TIMEOUT = "timeout", Consequences("timed out or hung")
    CRASH = "crash", Consequences("crashed", status="error", stops_search=True)
    NODE_FAILURE = "node_failure", Consequences("a node failed", "machine", text=_BROKEN_DEVICE)
    LAUNCH_FAILURE = (
        "launch_failure",
        Consequences("could not be launched", "machine", text=_ADDRESS_IN_USE, stops_search=True),
    )
    DISK_FULL = (
        "disk_full",
        Consequences("found the disk full", "machine", text=_DISK_FULL, stops_search=True),
    )
    PREEMPTED = "preempted", Consequences("preempted", "machine", text=_CHILD_KILLED)
    CANCELLED = "cancelled", Consequences("stopped with the search", "driver")

    @property
    def observed(self) -> bool:
        """Whether it is an observation for the optimizer: it depends on the configuration."""
        return self.row.cause in ("success", "configuration")

    @property
    def retried(self) -> bool:
        """Whether the same configuration runs again."""
        return not self.observed


BLAMELESS = frozenset(kind for kind in Kind if kind.row.cause == "machine")
"""Kinds caused by the machine: such ends do not count as trials."""

STATUSES = {status: kind for kind in Kind if (status := kind.row.status)}
"""Statuses that ``result.json`` may have, and the kinds that they mean."""
