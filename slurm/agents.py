"""The driver's side of the agents of one launch, for every launcher of processes.

Each launcher has its own transport: a socket pair locally, the standard streams of srun, TCP under
mpiexec. A :class:`slurm.channel.Channel` reads the agents' messages.
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

# After one rank has failed, srun -K1 ends the others at once. After an out-of-memory the trainer's
# ranks exit by themselves within 10 s and write the result: a shorter time would cut them off.
FAILURE_GRACE_S = 12.0
_POLL_S = 0.2
_READ_BYTES = 1 << 16
_MOST_SAID = 1 << 16  # bytes kept of the output of a launcher's program


class Pump:
    """A thread that passes data from descriptors to their receivers until all writers have ended.

    A receiver is called once with no bytes when its writer ends.
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
        """Add a source, while others are still open."""
        self._selector.register(source, selectors.EVENT_READ, receive)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait at most ``timeout_s`` for the end of all writers."""
        self._thread.join(timeout_s)

    def stop(self) -> None:
        """Stop reading, even if a process still holds a writing end."""
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
    """The agents of a launch, which may run one trial after the other.

    ``first_ranks`` has the first rank of each agent. After one rank has failed, the others may run
    on for ``failure_grace_s``.
    """

    spec: TrialSpec  # the latest trial
    lease: Lease

    def __init__(self, first_ranks: Iterable[int], num_ranks: int, failure_grace_s: float) -> None:
        self._failure_grace_s = failure_grace_s
        self._kill_at_s: float | None = None  # when running ranks are killed; None: none has failed
        self.channel = Channel(first_ranks, num_ranks, self.order)
        self.unwritten = ""  # why lines are missing in the logs of the last finished trial
        self.last_words = b""  # output of the launcher's program on that trial

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the process that started the agents, or the connection with them, exists."""

    @abstractmethod
    def _send(self, data: bytes) -> None:
        """Send data to all agents; raises OSError or ValueError if that fails."""

    def listen(self) -> None:  # noqa: B027 - nothing to do where messages are read at once
        """Read the remaining messages, if no agent is alive."""

    def order(self, order: Mapping[str, object]) -> None:
        with contextlib.suppress(OSError, ValueError):  # the agents have ended: the channel tells
            self._send(json.dumps(order).encode() + b"\n")

    def begin(
        self, spec: TrialSpec, lease: Lease, order: Mapping[str, Any], unclaimed: bytes = b""
    ) -> None:
        """Start a trial, whose folder is ready; see :mod:`slurm.agent` for the order.

        Raises OSError if its logs cannot be opened.
        """
        self.spec, self.lease, self._kill_at_s = spec, lease, None
        self.channel.begin(spec, lease, unclaimed)
        self.order({"trial": spec.name, "argv": spec.argv, "cwd": str(spec.started_in), **order})

    def over(self) -> bool:
        """Whether the trial is over: no process of it is left, or no agent could report that.

        Kills ranks that run on for more than ``failure_grace_s`` after one has failed.
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
        """Signal all processes of the trial, and wait at most ``timeout_s`` for its end."""
        self.order({"end": number})
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.alive and not self.channel.over:
            time.sleep(0.01)

    def watch(self, stop: threading.Event, stop_rule: StopRule | None) -> Watched:
        """Watch the trial; send its ranks SIGTERM unless they end by themselves.

        Processes left after the trial's ``grace_s`` still have to be killed.
        """
        watched = watch(self.spec, self.over, stop, stop_rule, lambda: self.channel.failed)
        severed = self._severed(watched.termination)  # before any signal of ours
        if watched.termination is not Termination.EXITED:
            self.end_ranks(signal.SIGTERM, self.spec.grace_s)
        return replace(watched, severed=severed)

    def _severed(self, ended: Termination) -> str:
        channel = self.channel
        self.listen()
        if said := channel.disturbed(ended, self.alive):
            return said
        if ended is not Termination.EXITED or channel.failed or channel.all_gone or self.alive:
            return ""
        return self._ended_by_others() or channel.lost_agent()

    def _ended_by_others(self) -> str:
        return ""

    def finish(self) -> None:
        """Close the trial's logs; if no agent is alive, they have all output."""
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
        not_started, suspects = channel.no_program()
        return gather(
            self.spec,
            self.lease,
            watched,
            # Even with a complete result, a void channel cannot exclude a disturbance.
            None if channel.void else channel.exit_code,
            channel.codes,
            down_nodes=frozenset(down_nodes).intersection(self.lease.nodes),
            stuck_nodes=tuple(stuck_nodes),
            texts=texts,
            unwritten=self.unwritten,
            launcher_said=cut_lines(self.last_words.decode(errors="replace")),
            oom_kills=channel.oom_kills,
            not_started=not_started,
            not_started_on=suspects,
        )


class TaskAgents(Agents):
    """A launcher's program whose tasks are agents; its own output is kept apart from the ranks'.

    ``argv`` is its command line, ``name`` its name in error messages.
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
        """Start a trial; its ranks, but not their agents, get the variables ``env``."""
        usual = {"clear": False, "ranks": [{}], "memory_bytes": None, "forked": False}
        self.begin(spec, lease, {**usual, "env": dict(env), **order}, self._said)

    def let_go(self, timeout_s: float) -> None:
        """Close the connection for orders, and wait at most ``timeout_s`` for the program's end."""
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
        """The program's own output since the last trial was finished."""
        return self._said.decode(errors="replace")

    def _take_output(self, data: bytes) -> None:
        self._hear(data)

    def _hear(self, data: bytes) -> None:
        self._said = (self._said + data)[-_MOST_SAID:]
        self.channel.note(data)

    def _ended_by_others(self) -> str:
        code = self.program.returncode or 0
        return f"{self._name} was ended from outside, by signal {-code}" if code < 0 else ""
