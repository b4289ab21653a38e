"""The driver's end of its connection with a launch's agents; see :mod:`slurm.agent`.

Anything that is not exactly one of their messages voids the channel: from then on it proves nothing
about the trial, which runs again. Output of ranks is data, and goes to the logs; so does what a
task prints before its agent has started.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from slurm.agent import LINE_BYTES, WORDS
from slurm.log_file import LAST_TRIES_S, LogFile
from slurm.outcome.watch import Termination, first_failed
from slurm.trial import STDERR_NAME, STDOUT_NAME, Lease, TrialSpec

SILENCE_S = 10.0  # two beats: after that an agent is pinged
ANSWER_S = 15.0  # for an agent's answer, on a loaded machine
LONGEST_LINE_BYTES = 1 << 20  # of output; longer lines are passed on in pieces
LAUNCH_S = 300.0  # for an agent's interpreter: thousands may read it from one file system
_LINE = re.compile(rb"(\d{1,7}) (?:(out|err) (.*)|([a-z]+)((?: -?\d{1,10}){0,3}))", re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
# Sent by people, shells, schedulers and the kernel; other signals, such as SIGSEGV, a program
# causes itself.
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_SENT = (*_ENDING, signal.SIGKILL, signal.SIGUSR1, signal.SIGUSR2)


@dataclass
class _Log:
    """One of the trial's two logs."""

    file: LogFile
    partial: dict[int, bytearray] = field(default_factory=dict)  # rank -> its line so far


@dataclass
class _Reports:
    """All that agents have reported of one trial."""

    codes: dict[int, int] = field(default_factory=dict)  # rank -> code, in the order of their ends
    signals: dict[int, tuple[int, int]] = field(default_factory=dict)  # rank -> signal, user
    missing: dict[int, tuple[int, int]] = field(default_factory=dict)  # rank -> errno, where
    oom_kills: int = 0
    gone: set[int] = field(default_factory=set)  # agents


class Channel:
    """All that agents report of one trial at a time, and the ranks' output; thread-safe.

    State is that of the latest trial, also after its end.

    Args:
        agents: first rank of each agent.
        num_ranks: ranks of all agents.
        order: sends an order to all agents.
    """

    _spec: TrialSpec
    _lease: Lease

    def __init__(
        self, agents: Iterable[int], num_ranks: int, order: Callable[[Mapping[str, object]], None]
    ) -> None:
        self.void = ""  # why the channel proves nothing any more; "": it is valid
        self.order = order
        bounds = pairwise([*sorted(agents), num_ranks])
        self._ranks_of = {first: range(first, after) for first, after in bounds}
        self._agent_of = {rank: agent for agent, own in self._ranks_of.items() for rank in own}
        self._agents = frozenset(self._ranks_of)
        self._num_ranks = num_ranks
        self._lock = threading.Condition()
        self._unread = b""
        self._reports = _Reports()
        self._logs: dict[bytes, _Log] = {}  # of a trial that runs
        self._heard_s = dict.fromkeys(self._agents, time.monotonic())
        self.greeted: set[int] = set()  # agents that have sent hello
        self._answers: dict[int, int] = {}  # agent -> number of the last ping that it answered
        self._ping = 0
        self._problem = ""

    def begin(self, spec: TrialSpec, lease: Lease, unclaimed: bytes = b"") -> None:
        """Prepare for a trial, whose folder is ready; ``unclaimed`` text begins its error log.

        Raises OSError if its logs cannot be opened.
        """
        with self._lock:
            self._spec, self._lease, self._reports, self._problem = spec, lease, _Reports(), ""
            now = time.monotonic()
            self._heard_s = {
                agent: now if agent in self.greeted else now + LAUNCH_S for agent in self._agents
            }
            for stream, name in ((b"out", STDOUT_NAME), (b"err", STDERR_NAME)):
                self._logs[stream] = _Log(LogFile(spec.directory / name))
            self._logs[b"err"].file.write(unclaimed)

    def finish(self) -> str:
        """Close the trial's logs; returns why lines are missing in them, or ""."""
        with self._lock:
            for log in self._logs.values():
                self._end_lines(log, list(log.partial))
                log.file.close(LAST_TRIES_S)
                self._problem = self._problem or log.file.problem
            self._logs.clear()
        return self._problem

    def note(self, text: bytes) -> None:
        """Write the launcher's own text into the error log, if a trial runs."""
        with self._lock:
            if log := self._logs.get(b"err"):
                log.file.write(text)

    # ---- state ----

    @property
    def codes(self) -> dict[int, int]:
        """Exit codes of the ranks, in the order of their ends; negative for a signal."""
        with self._lock:
            return dict(self._reports.codes)

    @property
    def oom_kills(self) -> int:
        return self._reports.oom_kills

    @property
    def all_gone(self) -> bool:
        """Whether nothing of the trial is left, and all its output is in the logs."""
        return not self.void and self._reports.gone >= self._agents

    @property
    def over(self) -> bool:
        return bool(self.void) or self.all_gone

    @property
    def failed(self) -> bool:
        """Whether a rank has failed; the others then have some time to end by themselves."""
        return bool(self._reports.missing) or any(self.codes.values())

    @property
    def exit_code(self) -> int | None:
        """The first failed rank's exit code; 0 if all succeeded; None while unknown."""
        if failed := first_failed(self.codes):
            return failed[1]
        return 0 if self.all_gone and len(self.codes) == self._num_ranks else None

    def disturbed(self, ended: Termination, alive: bool) -> str:
        """How others have disturbed the trial, which then proves nothing about its configuration.

        "" if they have not. Call it after the watch, and before any signal of ours. After a timeout
        agents that may be ``alive`` are pinged: a stopped agent is silent, whatever the trial does.
        """
        limits = (Termination.TIMEOUT, Termination.NO_PROGRESS)
        if ended in limits and alive:
            self.answers()
        if self.void or ended not in (Termination.EXITED, *limits):
            return self.void
        return self._sent_from_outside()

    def _sent_from_outside(self) -> str:
        """Message on the signal from outside that ended the first failed rank; "" if none did."""
        with self._lock:
            failed = first_failed(self._reports.codes)
            if failed is None:
                return ""
            # A shell adds 128 to a signal; other codes above 128 may be a program's own.
            ended = signal.SIGKILL if failed[1] == 128 + signal.SIGKILL else -failed[1]
            if ended == signal.SIGKILL and self._reports.oom_kills:
                return ""
            number, uid = self._reports.signals.get(failed[0], (0, -1))
            if number not in (*_ENDING, ended):  # the rank has survived that signal
                number, uid = (ended if ended in _SENT else 0), -1
        if not number:
            return ""
        who = f" from user {uid}" if uid >= 0 else ""
        node = self._node(failed[0])
        return f"rank {failed[0]} on {node} was sent signal {number} from outside{who}"

    def no_program(self) -> tuple[str, tuple[str, ...]]:
        """Why ranks could not be started, or ""; and the nodes that are suspect.

        If other ranks have started, the node of a missing one lacks a file system. Otherwise the
        command may be wrong: a launcher may end the other tasks before they can report it.
        """
        with self._lock:
            missing, started = dict(self._reports.missing), bool(self._reports.codes)
        if not missing:
            return "", ()
        first, nodes = min(missing), map(self._node, sorted(missing))
        number, where = missing[first]
        spec = self._spec
        what = f"no folder {spec.started_in}" if where else f"no program {spec.argv[0]}"
        message = f"{self._node(first)}: {what}: {os.strerror(number)} (rank {first})"
        return message, tuple(dict.fromkeys(nodes)) if started else ()

    def _node(self, rank: int) -> str:
        return self._lease.nodes[rank // self._spec.ranks_per_node]

    def lost_agent(self) -> str:
        """Message on an agent that ended without reporting ``gone``; "" if all have reported it."""
        with self._lock:
            left = sorted(self._agents - self._reports.gone)
        return f"the agent of rank {left[0]} ended without a word" if left else ""  # killed

    def answers(self, timeout_s: float | None = None) -> bool:
        """Whether all agents that still have ranks answer a ping in time; else void the channel."""
        timeout_s = ANSWER_S if timeout_s is None else timeout_s
        with self._lock:
            self._ping += 1
            number = self._ping
        self.order({"ping": number})

        def silent() -> set[int]:
            answered = {agent for agent, last in self._answers.items() if last >= number}
            return set(self._agents) - answered - self._reports.gone

        with self._lock:
            if self.void or self._lock.wait_for(lambda: self.void or not silent(), timeout_s):
                return not self.void
            self.void = f"the agent of rank {min(silent())} does not answer"
        return False

    def check_silence(self) -> None:
        """Ping the agents if one has been silent for too long."""
        before = time.monotonic() - SILENCE_S
        with self._lock:
            late = any(
                heard < before
                for one, heard in self._heard_s.items()
                if one not in self._reports.gone
            )
        if late and self.answers():
            with self._lock:
                self._heard_s = dict.fromkeys(self._agents, time.monotonic())

    # ---- input ----

    def feed(self, data: bytes) -> None:
        """Parse output of the agents."""
        with self._lock:
            *lines, self._unread = (self._unread + data).split(b"\n")
            if self.void:
                self._unread = b""
            elif len(self._unread) > LINE_BYTES:
                self._reject(self._unread)
            for line in lines:
                if not self.void:
                    self._take(line)
            self._lock.notify_all()

    def _take(self, line: bytes) -> None:
        found = _LINE.fullmatch(line) if len(line) <= LINE_BYTES else None
        if not found and not self.greeted >= self._agents:
            # A task prints before its agent: a site's TaskProlog, a container's entry point.
            if log := self._logs.get(b"err"):
                log.file.write(line + b"\n")
            return
        rank = int(found[1]) if found else -1
        if not found or rank not in self._agent_of:
            self._reject(line)
            return
        self._heard_s[self._agent_of[rank]] = time.monotonic()
        if found[2]:
            self._write(found[2], rank, found[3])
            return
        word, numbers = found[4].decode(), tuple(map(int, found[5].split()))
        ranges = WORDS.get(word)
        if (
            ranges is None
            or len(ranges) != len(numbers)
            or not all(low <= n <= high for n, (low, high) in zip(numbers, ranges, strict=True))
            or not self._is_possible(word, rank)
        ):
            self._reject(line)
            return
        self._note(word, rank, numbers)

    def _is_possible(self, word: str, rank: int) -> bool:
        match word:
            case "hello":
                return rank in self._agents and rank not in self.greeted
            case "end" | "none":
                return bool(self._logs) and not self._has_ended(rank)
            case "gone":
                own = self._ranks_of.get(rank, ())
                return (
                    rank not in self._reports.gone and all(map(self._has_ended, own)) and bool(own)
                )
            case _:
                return rank in self.greeted

    def _has_ended(self, rank: int) -> bool:
        return rank in self._reports.codes or rank in self._reports.missing

    def _note(self, word: str, rank: int, numbers: tuple[int, ...]) -> None:
        reports = self._reports
        if word == "end":
            reports.codes[rank] = numbers[0]
            reports.oom_kills = max(reports.oom_kills, numbers[1])
        elif word == "none":
            reports.missing[rank] = numbers[0], numbers[1]
        elif word == "sig":
            reports.signals.setdefault(rank, (numbers[0], numbers[1]))
        elif word == "hello":
            self.greeted.add(rank)
        elif word == "beat":
            self._answers[rank] = max(numbers[0], self._answers.get(rank, 0))
        elif word == "gone":
            reports.gone.add(rank)
            for log in self._logs.values():
                self._end_lines(log, [r for r in log.partial if self._agent_of[r] == rank])

    def _write(self, stream: bytes, rank: int, text: bytes) -> None:
        log = self._logs.get(stream)
        if log is None:
            return
        if b"\\\\" in text:
            text = _ESCAPED.sub(lambda one: b"\n" if one[1] == b"n" else one[1], text)
        else:
            text = text.replace(b"\\n", b"\n")
        line = log.partial.setdefault(rank, bytearray())
        # A progress bar ends its lines by a carriage return.
        if end := max(text.rfind(b"\n"), text.rfind(b"\r")) + 1:
            log.file.write(bytes(line) + text[:end])
            line.clear()
        line += text[end:]
        if len(line) > LONGEST_LINE_BYTES:
            log.file.write(bytes(line))
            line.clear()

    @staticmethod
    def _end_lines(log: _Log, ranks: Iterable[int]) -> None:
        """End the unfinished lines of these ranks, lest another rank's output continue them."""
        for rank in ranks:
            if line := log.partial.pop(rank):
                log.file.write(bytes(line) + b"\n")

    def _reject(self, line: bytes) -> None:
        self.void = f"an agent's connection has a line that is no message: {line[:60]!r}"
