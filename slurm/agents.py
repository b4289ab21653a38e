"""The agents of one launch at their driver's end, for every launcher of processes.

How orders and words travel is the launcher's own: locally by a socket pair, by srun's standard
streams, by TCP under mpiexec. What they say is heard by a :class:`slurm.channel.Channel`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm.channel import Channel
from slurm.log_file import LAST_TRIES_S
from slurm.logs.text import cut_lines
from slurm.outcome.evidence import Evidence, gather
from slurm.outcome.step_log import StopRule
from slurm.outcome.texts import NO_TEXTS, LauncherTexts
from slurm.outcome.watch import Termination, Watched, watch
from slurm.trial import Lease, TrialSpec

# After one rank has failed, srun -K1 ends the others at once. The trainer's ranks leave within 10 s
# of an out-of-memory by themselves, and write its result: a shorter time would cut them off.
FAILURE_GRACE_S = 12.0
_POLL_S = 0.2
_READ_BYTES = 1 << 16
_MOST_SAID = 1 << 16  # bytes kept of what a launcher's program says


class Pump:
    """Hands on what can be read from descriptors, in a thread, until all writers have ended.

    At a writer's end its receiver gets no bytes, once.
    """

    def __init__(self, sources: Mapping[int, Callable[[bytes], None]]) -> None:
        self._selector = selectors.DefaultSelector()
        self._stopped = threading.Event()
        for source, receive in sources.items():
            self.add(source, receive)
        self._thread = threading.Thread(target=self._run, name="agents", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def add(self, source: int, receive: Callable[[bytes], None]) -> None:
        """One more source, while others are there."""
        self._selector.register(source, selectors.EVENT_READ, receive)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait at most so long for the end of all writers."""
        self._thread.join(timeout_s)

    def stop(self) -> None:
        """Return when nothing is read any more, whoever may still hold a writing end."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with self._selector as selector:
            while selector.get_map() and not self._stopped.is_set():
                for key, _ in selector.select(_POLL_S):
                    data = b""
                    with contextlib.suppress(OSError):
                        data = os.read(key.fd, _READ_BYTES)
                    if not data:
                        selector.unregister(key.fd)
                    key.data(data)


class Agents(ABC):
    """The agents of a launch, whose ranks may be kept for one trial after the other.

    ``first_ranks`` are the first of each agent. Other ranks may go on for ``failure_grace_s`` after
    one has failed.
    """

    _spec: TrialSpec  # of the trial that has begun last
    _lease: Lease

    def __init__(self, first_ranks: Iterable[int], num_ranks: int, failure_grace_s: float) -> None:
        self._failure_grace_s = failure_grace_s
        self._kill_at_s: float | None = None  # when what still runs is killed; None: none failed
        self.channel = Channel(first_ranks, num_ranks, self.order)
        self.unwritten = ""  # why lines are missing in the logs of the trial that was finished
        self.last_words = b""  # of the launcher's program on that trial

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether what the agents were started by, or are heard by, is there."""

    @abstractmethod
    def _send(self, data: bytes) -> None:
        """Send it to all agents; raises OSError or ValueError where that cannot be done."""

    def listen(self) -> None:  # noqa: B027 - one that hears of all at once has nothing to do
        """Take all that was said, if nothing is alive."""

    def order(self, order: Mapping[str, object]) -> None:
        with contextlib.suppress(OSError, ValueError):  # they have ended, which is seen elsewhere
            self._send(json.dumps(order).encode() + b"\n")

    def begin(
        self, spec: TrialSpec, lease: Lease, order: Mapping[str, Any], unclaimed: bytes = b""
    ) -> None:
        """Start a trial, whose folder is ready; see :mod:`slurm.agent` for the order.

        Raises OSError if its logs cannot be opened.
        """
        self._spec, self._lease, self._kill_at_s = spec, lease, None
        self.channel.begin(spec, unclaimed)
        self.order({"trial": spec.name, "argv": spec.argv, "cwd": str(spec.started_in), **order})

    def over(self) -> bool:
        """Whether the trial is over: nothing of it is left, or nobody could say so any more.

        Ranks that outlive one that has failed for too long are killed.
        """
        if self.channel.over or not self.alive:
            return True
        now = time.monotonic()
        if self._kill_at_s is None and self.channel.failed:
            self._kill_at_s = now + self._failure_grace_s
        if self._kill_at_s is not None and now >= self._kill_at_s:
            self._kill_at_s = math.inf  # once
            self.order({"end": signal.SIGKILL})
        self.channel.check_silence()
        return False

    def end_ranks(self, number: signal.Signals, timeout_s: float) -> None:
        """Signal all that the trial has started, and wait at most so long for its end."""
        self.order({"end": number})
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.alive and not self.channel.over:
            time.sleep(0.01)

    def watch(self, stop: threading.Event, stop_rule: StopRule | None) -> Watched:
        """Watch the trial, and have its ranks end if they do not by themselves.

        What is left after the trial's ``grace_s`` still has to be killed.
        """
        spec = self._spec
        watched = watch(spec, self.over, stop, stop_rule, lambda: self.channel.failed)
        severed = self._severed(watched.termination)  # before any signal of ours
        if watched.termination is not Termination.EXITED:
            self.end_ranks(signal.SIGTERM, spec.grace_s)
        return replace(watched, severed=severed)

    def _severed(self, ended: Termination) -> str:
        channel = self.channel
        self.listen()
        if said := channel.disturbed(self._spec, self._lease, ended, self.alive):
            return said
        if ended is not Termination.EXITED or channel.failed or channel.all_gone or self.alive:
            return ""
        return self._ended_by_others() or channel.lost_agent()

    def _ended_by_others(self) -> str:
        return ""

    def finish(self) -> None:
        """Close the trial's logs; if nothing is alive, all output is in them."""
        self.listen()
        self.unwritten = self.channel.finish()

    def evidence(
        self,
        watched: Watched,
        texts: LauncherTexts = NO_TEXTS,
        *,
        down_nodes: Iterable[str] = (),
        stuck_nodes: Iterable[str] = (),
    ) -> Evidence:
        """Collect the evidence of the trial that was finished; see :class:`Evidence`."""
        channel = self.channel
        not_started, suspects = channel.no_program(self._spec, self._lease)
        return gather(
            self._spec,
            self._lease,
            watched,
            # A result may be complete, but that nobody disturbed the trial is not known then.
            None if channel.void else channel.exit_code,
            channel.codes,
            down_nodes=frozenset(down_nodes).intersection(self._lease.nodes),
            stuck_nodes=tuple(stuck_nodes),
            texts=texts,
            unwritten=self.unwritten,
            launcher_said=cut_lines(self.last_words.decode(errors="replace")),
            oom_kills=channel.oom_kills,
            not_started=not_started,
            not_started_on=suspects,
        )


class TaskAgents(Agents):
    """A launcher's program, each of whose tasks is an agent; its words are kept apart from ranks'.

    ``argv`` is its line, ``name`` what messages call it.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        cwd: Path,
        environ: Mapping[str, str],
        num_ranks: int,
        failure_grace_s: float = 0.0,
    ) -> None:
        super().__init__(range(num_ranks), num_ranks, failure_grace_s)
        self._name, self._said = name, b""
        self.program = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal is for the driver alone
        )
        assert self.program.stdout is not None and self.program.stderr is not None
        sources = {self.program.stdout: self._take_output, self.program.stderr: self._hear}
        self._pump = Pump({file.fileno(): receive for file, receive in sources.items()})

    @property
    def alive(self) -> bool:
        return self.program.poll() is None

    def start(self, spec: TrialSpec, lease: Lease, env: Mapping[str, str], **order: Any) -> None:
        """Start a trial; its ranks get the variables ``env``, which their agents do not have."""
        usual = {"clear": False, "ranks": [{}], "memory_bytes": None, "forked": False}
        self.begin(spec, lease, {**usual, "env": dict(env), **order}, self._said)

    def let_go(self, timeout_s: float) -> None:
        """End the orders, and wait at most so long for the program's end."""
        assert self.program.stdin is not None
        with contextlib.suppress(OSError):
            self.program.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.program.wait(timeout_s)

    def finish(self) -> None:
        super().finish()
        self.last_words, self._said = self._said, b""

    def listen(self) -> None:
        if not self.alive:
            self._pump.join(LAST_TRIES_S)

    def said(self) -> str:
        """The program's words since the last trial was finished."""
        return self._said.decode(errors="replace")

    def _take_output(self, data: bytes) -> None:
        self._hear(data)

    def _hear(self, data: bytes) -> None:
        self._said = (self._said + data)[-_MOST_SAID:]
        self.channel.note(data)

    def _ended_by_others(self) -> str:
        code = self.program.returncode or 0
        return f"{self._name} was ended from outside, by signal {-code}" if code < 0 else ""
