"""Classifying the end of a trial by its result, its logs, and the end of its watch.

Exit codes only decide whether it succeeded: srun's is 1 for a host out-of-memory, and 143 both for
a rank that crashed under ``-K1`` and for a time limit (measured on Slurm 22.05). Texts in the logs
decide the rest: those of each kind, for any launcher (:mod:`slurm.outcome.kinds`), and the
launcher's own, which are part of the evidence (:class:`slurm.outcome.texts.LauncherTexts`).
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from slurm.logs.text import MAX_LINE, cut_lines, read_log
from slurm.outcome.evidence import Evidence
from slurm.outcome.kinds import STATUSES, Before, Kind
from slurm.outcome.result import find_result, kept_result
from slurm.outcome.step_log import EarlyStop
from slurm.outcome.watch import Termination
from slurm.trial import STDERR_NAME, STDOUT_NAME

TAIL_LINES, TAIL_CHARACTERS = 40, 500  # of each line
MESSAGE_CHARACTERS = 1000
_EXCEPTION = re.compile(
    r"(?m)^(?:\[(?P<rank>rank\d+)\]: *)?"
    r"(?P<said>(?:[\w.]+\.)?(?:\w+(?:Error|Exception)|OutOfResources)\b.*)$"
)
_NO_EXCEPTION = re.compile(  # last lines of failures that are no Python exceptions
    r"(?m)^(?:\S*python[\d.]*: (?:can't open file|No module named) .*"
    r"|\S+: (?:line )?\d+: .*(?:not found|Permission denied|No such file or directory)"
    r"|\S+: error while loading shared libraries: .*|\S+\.py: error: .*"
    r"|Fatal Python error: .*|Memory access fault by GPU .*)$"
)
# Messages of a rank whose peer has failed, and of a launcher on its ranks: consequences, no causes.
_OF_PEERS = re.compile(
    r"(?i)connection (?:was )?(?:closed|reset|aborted|refused|lost)|broken pipe|socket (?:closed|"
    r"timeout)|remote process exited|ChildFailedError|Watchdog|communicator was aborted"
    r"|Dist(?:Store|Network)Error|Timed out (?:waiting|after)|ProcessGroup\w* .{0,40}abort"
)


# Signals of a process that fails by itself; a shell adds 128 to them.
_FAULTS = [code for n in (signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV) for code in (-n, 128 + n)]


@dataclass(frozen=True)
class Outcome:
    """The end of a trial, and what decided its kind."""

    kind: Kind
    result: Mapping[str, Any] | None = None  # the trainer's metrics, if it gave any
    message: str = ""  # one line: the evidence that decided the kind
    stderr_tail: str = ""
    exit_code: int | None = None
    elapsed_s: float = 0.0
    steps: int | None = None  # number of steps reported; None: unknown
    stopped_early: bool = False  # the result covers the steps until the stop
    saved_s: float = 0.0  # by stopping early
    suspect_nodes: tuple[str, ...] = ()  # to be quarantined
    excused: bool = False  # the machine is to blame: no retry is counted
    lost_nodes: tuple[str, ...] = ()  # to leave the pool: down, or with processes that do not die

    @property
    def kept_result(self) -> Mapping[str, Any] | None:
        """The part of the result that the journal keeps."""
        return None if self.result is None else kept_result(self.result)

    @classmethod
    def stated(cls, directory: Path) -> Self | None:
        """The outcome of a trial whose driver was killed, if the trainer stated one.

        The exit code is unknown, so only a complete statement of the trainer counts
        (``result.json``, ``MESHTUNE_RESULT``): no patterns, as the log may have been cut short, and
        no ``error``, as ranks that are being killed report one. None if the trainer was not done.
        """
        stdout, _ = read_log(directory / STDOUT_NAME)
        result, _ = find_result(directory, stdout)
        kind = Kind.CRASH if result is None else STATUSES[str(result.get("status", "ok"))]
        if kind is Kind.CRASH:
            return None
        message = "" if kind is Kind.OK else _one_line(_result_message(result))
        stderr, _ = read_log(directory / STDERR_NAME)
        return cls(kind, result=result, message=message, stderr_tail=_tail(cut_lines(stderr)))


@dataclass(frozen=True)
class _Verdict:
    kind: Kind
    message: str
    suspects: Iterable[str] = ()
    early_stop: EarlyStop | None = None


def classify(evidence: Evidence) -> Outcome:
    """Classify the end of a trial; pure.

    A cause comes before its possible consequences: a complete success, failures of the machine
    (they make trainers fail in any way), the trainer's own statement, out-of-memory (one rank dies
    and the others hang until a timeout), a failed launch, a full disk, a fault after the last step,
    timeouts, and last a crash.
    """
    verdict = (
        _success(evidence)
        or _machine_failure(evidence)
        or _own_verdict(evidence)
        or _stopped(evidence)
        or _out_of_memory(evidence)
        or _launch_failure(evidence)
        or (_from_outside(evidence, evidence.severed) if evidence.severed else None)
        or _after_the_end(evidence)
        or _timeout(evidence)
        or _cancelled_by_others(evidence)
        or _crash(evidence)
    )
    lost = {*evidence.stuck_nodes, *evidence.down_nodes}
    return Outcome(
        kind=verdict.kind,
        result=verdict.early_stop.result if verdict.early_stop else evidence.result,
        message=_one_line(verdict.message),
        stderr_tail=_tail(evidence.stderr),
        exit_code=evidence.exit_code,
        elapsed_s=evidence.elapsed_s,
        steps=evidence.steps,
        stopped_early=verdict.early_stop is not None,
        saved_s=verdict.early_stop.saved_s if verdict.early_stop else 0.0,
        suspect_nodes=tuple(n for n in evidence.nodes if n in set(verdict.suspects) - lost),
        lost_nodes=tuple(n for n in evidence.nodes if n in lost),
    )


def _success(evidence: Evidence) -> _Verdict | None:
    # A stop or timeout may come while the trainer exits: with exit code 0 it is still a success.
    if evidence.exit_code == 0 and _status(evidence) == "ok":
        return _Verdict(Kind.OK, "")
    return None


def _machine_failure(evidence: Evidence) -> _Verdict | None:
    texts, stderr = evidence.texts, evidence.said
    if found := texts.preempted.search(stderr):
        return _Verdict(Kind.PREEMPTED, _line_of(found))
    if found := texts.time_limit.search(stderr):
        # The launcher's limit is after the trial's timeout; an earlier one is the allocation's.
        if evidence.elapsed_s < evidence.timeout_s:
            return _Verdict(Kind.PREEMPTED, f"the allocation ended: {_line_of(found)}")
        return _Verdict(Kind.TIMEOUT, _line_of(found))
    if found := texts.node_failure.search(stderr):
        # A node is lost only if the scheduler's state confirms it: if it is among the down nodes.
        named = _named(texts.node_failure, stderr)
        return _Verdict(Kind.NODE_FAILURE, _line_of(found), suspects=named)
    if evidence.down_nodes:
        return _Verdict(Kind.NODE_FAILURE, f"down: {', '.join(sorted(evidence.down_nodes))}")
    if found := texts.lost_node.search(stderr):
        named = _named(texts.lost_node, stderr)
        return _Verdict(Kind.NODE_FAILURE, _line_of(found), suspects=named)
    return _by_log_text(evidence, Before.RESULT)


def _stopped(evidence: Evidence) -> _Verdict | None:
    if evidence.termination is Termination.STOPPED:
        return _Verdict(Kind.CANCELLED, "stopped")
    if evidence.early_stop is not None:
        # The trial was done when it was stopped: its result covers all steps.
        if _status(evidence) == "ok":
            return _Verdict(Kind.OK, "")
        return _Verdict(Kind.OK, evidence.early_stop.message, early_stop=evidence.early_stop)
    return None


def _own_verdict(evidence: Evidence) -> _Verdict | None:
    kind = STATUSES.get(_status(evidence) or "")
    # "error" names no cause; ranks that are killed because of others report it, too.
    if kind in (None, Kind.OK, Kind.CRASH):
        return None
    return _Verdict(kind, _result_message(evidence.result))


def _out_of_memory(evidence: Evidence) -> _Verdict | None:
    if evidence.oom_kills:
        killed = f"{evidence.oom_kills} processes killed by the kernel for want of host memory"
        return _Verdict(Kind.HOST_OOM, killed)
    # Slurm's message is about a whole step; agents' reports on the ends of ranks are more exact.
    unknown = evidence.exit_code is None or not evidence.failed_on
    if unknown and (found := evidence.texts.host_oom.search(evidence.said)):
        return _Verdict(Kind.HOST_OOM, _line_of(found))
    if (verdict := _by_log_text(evidence, Before.LAUNCH)) is None or not evidence.severed:
        return verdict
    # The trainer may have handled an out-of-memory before others ended it; torch names the rank of
    # one that was not handled. A shell's exit code is weaker: a script may kill its other ranks.
    stated = verdict.message in _result_message(evidence.result)
    weak = evidence.exit_code == 128 + signal.SIGKILL
    return verdict if stated or weak or verdict.message.startswith("[rank") else None


def _launch_failure(evidence: Evidence) -> _Verdict | None:
    """A failed launch, or a full disk."""
    if evidence.not_started:
        return _Verdict(Kind.LAUNCH_FAILURE, evidence.not_started, evidence.not_started_on)
    texts, stderr = evidence.texts, evidence.said
    for text, remedy in texts.container:
        if found := text.search(evidence.stderr):
            return _Verdict(Kind.LAUNCH_FAILURE, f"{_line_of(found)}; {remedy}")
    if found := texts.launch_failure.search(stderr):
        named = _named(texts.launch_failure, stderr)
        return _Verdict(Kind.LAUNCH_FAILURE, _line_of(found), suspects=named)
    if (found := texts.no_answer.search(stderr)) and evidence.exit_code is None:
        return _Verdict(Kind.LAUNCH_FAILURE, _line_of(found))
    if found := texts.no_program.search(stderr):
        # Missing on some nodes: these lack a file system. Missing on all: the command is wrong.
        named = _named(texts.no_program, stderr)
        suspects = named if named < set(evidence.nodes) else ()
        return _Verdict(Kind.LAUNCH_FAILURE, found.group(), suspects=suspects)
    if verdict := _by_log_text(evidence, Before.TIMEOUT):
        return verdict
    if evidence.unwritten:  # the disk was too full for logs, whose missing lines may name the cause
        return _Verdict(Kind.DISK_FULL, f"could not be written: {evidence.unwritten}")
    return None


def _after_the_end(evidence: Evidence) -> _Verdict | None:
    """A trainer whose process groups crashed as they were torn down, after its last step.

    An exit code that it chose itself is a failure all the same; so is a hang, as an evaluation may
    have been cut short.
    """
    if evidence.reached_end and _status(evidence) == "ok" and evidence.exit_code in _FAULTS:
        return _Verdict(Kind.OK, f"exit code {evidence.exit_code} after its last step")
    return None


def _timeout(evidence: Evidence) -> _Verdict | None:
    if evidence.termination is Termination.TIMEOUT:
        return _Verdict(Kind.TIMEOUT, f"not done after {evidence.timeout_s:g} s")
    if evidence.termination is Termination.NO_PROGRESS:
        quiet_s = evidence.no_progress_timeout_s or 0.0
        return _Verdict(Kind.TIMEOUT, f"nothing in its logs for {quiet_s:g} s: a hang")
    return None


def _cancelled_by_others(evidence: Evidence) -> _Verdict | None:
    """A step cancelled before any of its ranks had failed: by a user, or with the job."""
    cancelled = evidence.texts.cancelled.search(evidence.said)
    if cancelled and not evidence.failed_on:
        return _from_outside(evidence, f"cancelled from outside: {_line_of(cancelled)}")
    return None


def _from_outside(evidence: Evidence, why: str) -> _Verdict:
    # The trainer has stated its result; its exit code is unknown, as in ``Outcome.stated``.
    if evidence.complete and _status(evidence) == "ok":
        return _Verdict(Kind.OK, "")
    return _Verdict(Kind.PREEMPTED, why)


def _crash(evidence: Evidence) -> _Verdict:
    if verdict := _by_log_text(evidence, Before.CRASH):
        if verdict.kind is not Kind.PREEMPTED:
            return verdict
        if found := evidence.texts.host_oom.search(evidence.said):
            return _Verdict(Kind.HOST_OOM, _line_of(found))
        if evidence.exit_code != 0:
            return _from_outside(evidence, verdict.message)
    if evidence.exit_code == 0:
        if _status(evidence) is None:
            return _Verdict(Kind.CRASH, f"exit code 0, but {evidence.no_result or 'no result'}")
        return _Verdict(Kind.CRASH, _result_message(evidence.result))
    what = []
    if (code := evidence.exit_code) is not None:
        what.append(f"ended by signal {-code}" if code < 0 else f"exit code {code}")
    if _status(evidence) == "ok":
        what.append("after an ok result")
    else:
        stated = _result_message(evidence.result) if evidence.result is not None else ""
        own = "" if stated and not _OF_PEERS.search(stated) else _own_exception(evidence.stderr)
        what.append(own or stated)
    return _Verdict(Kind.CRASH, "; ".join(filter(None, what)) or "ended in an unknown way")


def _own_exception(stderr: str) -> str:
    """Last traceback line of the rank that failed first, or of any; else a shell's or library's.

    "" if there is none. Torch names the rank that an exception ends. Exceptions without a rank may
    have been handled, so the last one counts.
    """
    found = list(_EXCEPTION.finditer(stderr))
    causes = [each for each in found if not _OF_PEERS.search(each["said"])]
    ranked = [each for each in causes if each["rank"]]
    if ranked:  # the rank's last one: earlier ones are the causes in the same chain
        return next(each for each in reversed(ranked) if each["rank"] == ranked[0]["rank"])["said"]
    if not causes and (lines := list(_NO_EXCEPTION.finditer(stderr))):
        return lines[-1][0]
    return (causes or found)[-1]["said"] if found else ""


def _by_log_text(evidence: Evidence, before: Before) -> _Verdict | None:
    """The first kind with a text of precedence ``before`` in the logs."""
    for kind in Kind:
        text = kind.row.text
        if text is None or text.before is not before:
            continue
        logs = evidence.stderr if text.stderr_only else _all_text(evidence)
        own = _own_exception(evidence.stderr) if text.exception_only else ""
        if _EXCEPTION.match(own) and not _OF_PEERS.search(own):
            logs = own
        if found := text.pattern.search(logs):
            return _Verdict(kind, found.groupdict().get("message") or _line_of(found))
    return None


def _named(pattern: re.Pattern[str], stderr: str) -> set[str]:
    named = {found.groupdict().get("node") for found in pattern.finditer(stderr)}
    return {node for node in named if node}


def _status(evidence: Evidence) -> str | None:
    return None if evidence.result is None else str(evidence.result.get("status", "ok"))


def _result_message(result: Mapping[str, Any] | None) -> str:
    result = result or {}
    where, message = result.get("where"), result.get("message") or result.get("status", "")
    return f"{where}: {message}" if where else str(message)


def _one_line(text: str) -> str:
    return " ".join(text[: 2 * MESSAGE_CHARACTERS].split())[:MESSAGE_CHARACTERS]


def _tail(log: str) -> str:
    """The last lines of a log, as the journal keeps them."""
    end = log[-TAIL_LINES * (MAX_LINE + 100) :]  # a log of 4 MiB need not become a list of lines
    return "\n".join(line[:TAIL_CHARACTERS] for line in end.splitlines()[-TAIL_LINES:])


def _all_text(evidence: Evidence) -> str:
    said = _result_message(evidence.result) if evidence.result else ""
    return f"{cut_lines(said)}\n{evidence.stderr}\n{evidence.stdout}"  # it names files, too


def _line_of(found: re.Match[str]) -> str:
    """The whole line that a match is in, shortened."""
    start = found.string.rfind("\n", 0, found.start()) + 1
    end = found.string.find("\n", found.end())
    return found.string[start : end if end >= 0 else None][:300]
