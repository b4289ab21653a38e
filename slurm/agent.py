"""The agent of one task: it starts a trial's ranks and alone reports how they end.

``python -I -S agent.py [NAME=TARGET ...] [-- PROGRAM ...]``, started by this file's path, needs the
standard library alone, from Python 3.8 on, and imports as little of it as possible. It talks to the
driver over a connection of which no rank has a descriptor: ranks' output is data in it and cannot
pass for a message. Each message is a line: a rank's number, a word of :data:`WORDS`, its integers:

* ``hello VERSION PID``: the agent has started; ``beat NUMBER``: it is alive; answers that ping;
* ``sig SIGNAL UID``: a user has sent the agent a signal, which it then forwards to its ranks;
* ``none ERRNO WHERE``: a rank has no program (WHERE 0) or no folder to start in (1);
* ``end CODE OOM_KILLS``: a rank has ended, by a signal if CODE is negative; OOM_KILLS processes
  have been killed by the kernel for lack of memory since the trial began;
* ``gone``: all ranks of this agent have ended, and no process that they started is left.

Other lines are ``out`` or ``err`` and a piece of the rank's output, with ``\\n`` for a line feed.

Orders are lines of JSON. ``{"end": signal}`` sends the signal to the ranks and all their
descendants, ``{"ping": number}`` asks for a beat, and an order with these keys starts a trial:

* ``trial``: its name; ``argv``, ``cwd``: of every rank;
* ``ranks``: one object per rank to start here, with environment variables of its own;
* ``env``: variables for all ranks; ``clear``: whether ranks get no others;
* ``forked``: whether ``argv`` is a Python command to run in a fork of a process that has imported
  ``modules`` (:mod:`slurm.fork_server`); else it is executed;
* ``memory_bytes``: RLIMIT_DATA of a rank, or null.

Two facts of Linux let it promise that no process of a trial survives. It is a *child subreaper*:
whatever a rank starts and abandons becomes the agent's child. And when the driver dies, in any way,
the agent reads the end of its orders and kills all its descendants.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # importing typing takes as long as all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn
if TYPE_CHECKING or __package__:
    from slurm import kernel
else:  # started by its path
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import kernel

VERSION = 1
WORDS = {  # name -> least and greatest value of each integer
    "hello": ((VERSION, VERSION), (1, 1 << 30)),
    "beat": ((0, 1 << 30),),
    "sig": ((1, 64), (0, 1 << 32)),
    "none": ((1, 1 << 12), (0, 1)),
    "end": ((-64, 255), (0, 1 << 30)),
    "gone": (),
}
BEAT_S = 5.0
LINE_BYTES = 1000  # slurmstepd passes on whole lines of at most 1 KiB
_TEXT_BYTES = 480  # of a rank's output in one line; escaping may double them
_FULL_BYTES = 1 << 18  # with so much still to be sent, no more output is read from ranks
_START_S = 2.0  # to wait for a rank to execute its program
_KILL_AGAIN_S = 0.05  # a process that was being forked may have escaped the signal
_FORWARDED = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU),
)
_WAITED = {signal.SIGCHLD, signal.SIGIO, *_FORWARDED}


class Agent:
    """Starts the ranks of one trial at a time, and sees all their descendants end.

    ``orders`` and ``words`` are descriptors to read from and write to; ``first_rank`` is the first
    rank started here. ``in_fork`` runs a rank in the fork itself, for an agent that has imported
    the trainer; ``hidden``: the user's other processes cannot read its memory or descriptors.
    """

    def __init__(
        self,
        orders: int,
        words: int,
        first_rank: int = 0,
        in_fork: Callable[[Mapping[str, Any], int], NoReturn] | None = None,
        hidden: bool = True,
    ) -> None:
        self._orders, self._words = orders, words
        self._first_rank, self._in_fork, self._hidden = first_rank, in_fork, hidden
        self._unread, self._unsent = b"", bytearray()
        self._ranks: dict[int, int] = {}  # process id -> rank, of those that run
        self._failed: dict[int, int] = {}  # rank -> pipe with the reason why it has not started
        self._pipes: dict[int, tuple[int, bytes]] = {}  # read end -> rank and stream
        self._server: tuple[int, int, int] | None = None  # process id, requests, replies
        self._expected = False  # the fork server has still to report the rank's process id
        self._strays: dict[int, int] = {}  # process id -> status, of ends seen while it is expected
        # Leaving: no further trial is started. Orphaned: the driver is gone.
        self._busy = self._killing = self._leaving = self._orphaned = False
        self._oom_kills = 0
        self._beat_s = time.monotonic()

    def serve(self) -> Callable[[], NoReturn]:
        """Obey orders until the last trial has ended, then exit.

        Returns only in a forked rank: the function that it has to run.
        """
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        if self._hidden:
            kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        for end in {self._orders, self._words}:
            kernel.notify(end)
        self._say(self._first_rank, "hello", VERSION, os.getpid())
        while self._busy or not self._leaving:
            self._send()
            info = signal.sigtimedwait(_WAITED, self._patience_s())
            if info is not None and info.si_signo in _FORWARDED:
                self._forward(info.si_signo, info.si_uid)
            self._pump()
            for order in self._read_orders():
                if rank := self._obey(order):
                    return rank
            self._reap()
            if time.monotonic() - self._beat_s >= BEAT_S and len(self._unsent) < _FULL_BYTES:
                self._beat_s = time.monotonic()
                self._say(self._first_rank, "beat", 0)
        os.set_blocking(self._words, True)
        self._send()
        os._exit(0)

    # ---- the driver ----

    def _patience_s(self) -> float:
        if self._killing:
            return _KILL_AGAIN_S
        return 0.1 if self._unsent else BEAT_S

    def _say(self, rank: int, word: str, *numbers: int) -> None:
        self._unsent += b" ".join(str(item).encode() for item in (rank, word, *numbers)) + b"\n"

    def _send(self) -> None:
        try:
            while self._unsent and not self._orphaned:
                del self._unsent[: os.write(self._words, self._unsent)]
        except OSError as error:
            if error.errno != errno.EAGAIN:
                self._become_orphan()

    def _become_orphan(self) -> None:
        self._orphaned = self._killing = self._leaving = self._busy = True
        self._unsent.clear()

    def _read_orders(self) -> list[dict[str, Any]]:
        data = b""
        try:
            while not self._orphaned and (piece := os.read(self._orders, 1 << 16)):
                data += piece
            if not self._orphaned:
                self._become_orphan()
        except OSError as error:
            if error.errno != errno.EAGAIN:
                self._become_orphan()
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [] if self._orphaned else [json.loads(line) for line in lines]

    def _obey(self, order: Mapping[str, Any]) -> Callable[[], NoReturn] | None:
        if "end" in order:
            self._await_starts()
            for pid in self._descendants():
                kernel.kill(pid, order["end"])
        elif "ping" in order:
            self._say(self._first_rank, "beat", order["ping"])
        else:
            self._busy, self._killing, self._oom_kills = True, False, kernel.oom_kills()
            if order["forked"] and not self._in_fork:
                self._ask_server(order)
            else:
                for index in range(len(order["ranks"])):
                    if self._start(order, index) and (in_fork := self._in_fork):
                        return lambda: in_fork(order, index)
        return None

    def _forward(self, number: int, uid: int) -> None:
        """Report a signal and pass it on to the ranks; Slurm signals only the task's process."""
        self._say(self._first_rank, "sig", number, uid)
        self._await_starts()
        for pid in self._ranks:
            kernel.kill(pid, number)
        if not self._ranks:
            self._send()
            os._exit(0)

    # ---- ranks ----

    def _await_starts(self) -> None:
        """Wait until each rank has executed its program or failed to: a signal would hide that."""
        for failed in self._failed.values():
            select.select([failed], [], [], _START_S)

    def _start(self, order: Mapping[str, Any], index: int) -> bool:
        """Start a rank; True in a forked child, which has to run it."""
        rank = self._first_rank + index
        outputs, failed = self._outputs(rank), os.pipe()
        pid = self._fork([os.open(os.devnull, os.O_RDONLY), *outputs])
        if pid == 0:
            if self._in_fork and order["forked"]:
                others = (*self._pipes, *self._failed.values())
                for end in (self._orders, self._words, *others, *failed):
                    kernel.close(end)
                return True
            kernel.become(order, index, failed[1])
        os.close(failed[1])
        self._failed[rank], self._ranks[pid] = failed[0], rank
        return False

    def _outputs(self, rank: int) -> list[int]:
        """Write ends of pipes for a rank's standard output and error."""
        writers = []
        for stream in (b"out", b"err"):
            reader, writer = os.pipe()
            kernel.notify(reader)
            self._pipes[reader] = rank, stream
            writers.append(writer)
        return writers

    def _fork(self, streams: Sequence[int]) -> int:
        """Fork a child that dies with this process; ``streams`` become its descriptors 0 and on."""
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            # Debuggers, and ranks that share memory, need a process that is not hidden.
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            os.setpgid(0, 0)  # the agent must not get signals that a rank sends to its group
            for target, end in enumerate(streams):
                os.dup2(end, target)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            return 0
        for end in streams:
            os.close(end)
        return pid

    def _ask_server(self, order: Mapping[str, Any]) -> None:
        """Have the fork server start the rank, which becomes a child of this process."""
        if self._server is None:
            (requests, requests_w), (replies, replies_w) = os.pipe(), os.pipe()
            failed, failed_w = os.pipe()
            pid = self._fork([requests, *self._outputs(self._first_rank), replies_w])
            if pid == 0:
                path = os.path.join(os.path.dirname(__file__), "fork_server.py")
                command = [order["argv"][0], path, ",".join(order["modules"])]
                kernel.become({**order, "argv": command, "env": {}}, 0, failed_w)
            os.close(failed_w)
            kernel.notify(replies)
            self._server = pid, requests_w, replies
            self._failed[self._first_rank] = failed
        self._expected = True
        try:
            os.write(self._server[1], json.dumps(order).encode() + b"\n")
        except OSError:
            pass  # the server has died: _ended handles that

    def _pump(self) -> None:
        for pipe in list(self._pipes):
            while len(self._unsent) < _FULL_BYTES:
                data = kernel.read(pipe)
                if data is None:
                    break
                if not data:
                    os.close(pipe)
                    del self._pipes[pipe]
                    break
                rank, stream = self._pipes[pipe]
                self._unsent += framed(rank, stream, data)
                self._send()
        if self._expected and self._server and (told := kernel.read(self._server[2])):
            self._expected, pid = False, int(told)
            self._ranks[pid] = self._first_rank
            if pid in self._strays:
                self._ended(pid, self._strays.pop(pid))

    def _reap(self) -> None:
        """Reap children that have ended; once all ranks have, kill the processes they left."""
        childless = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                childless = True
                break
            if pid == 0:
                break
            self._ended(pid, status)
        if self._busy and (self._killing or not (self._ranks or self._expected)):
            left = set() if childless else self._descendants()
            for one in left:
                kernel.kill(one, signal.SIGKILL)
            self._killing = bool(left)
            if not left and not self._ranks:
                self._gone()

    def _ended(self, pid: int, status: int) -> None:
        if self._server and pid == self._server[0]:
            self._server, self._leaving = None, True
            if self._expected and not self._no_program(self._first_rank):
                os._exit(1)  # whether its rank has started is unknown
            self._expected = False
            return
        if pid not in self._ranks:
            if self._expected:
                self._strays[pid] = status
            return  # otherwise it is a process that a rank had abandoned
        rank = self._ranks.pop(pid)
        if not self._no_program(rank):
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            self._pump()
            self._say(rank, "end", code, max(0, kernel.oom_kills() - self._oom_kills))

    def _no_program(self, rank: int) -> bool:
        """Whether a rank's program could not be started; if so, report it to the driver."""
        failed = self._failed.pop(rank, None)
        if failed is None:
            return False
        said = os.read(failed, 100)
        os.close(failed)
        if said:
            self._say(rank, "none", *map(int, said.split()))
        return bool(said)

    def _gone(self) -> None:
        self._busy = self._killing = False
        if self._orphaned:
            return
        for pipe in list(self._pipes):
            while data := kernel.read(pipe):
                self._unsent += framed(*self._pipes[pipe], data)
            if self._server is None:
                os.close(pipe)
                del self._pipes[pipe]
        self._strays.clear()
        self._say(self._first_rank, "gone")

    def _descendants(self) -> set[int]:
        """Running processes of the trial."""
        return kernel.descendants(os.getpid(), self._server[0] if self._server else 0)


def framed(rank: int, stream: bytes, data: bytes) -> bytes:
    """A rank's output as lines to the driver."""
    head = b"%d %s " % (rank, stream)
    pieces = (data[at : at + _TEXT_BYTES] for at in range(0, len(data), _TEXT_BYTES))
    return b"".join(
        head + piece.replace(b"\\", b"\\\\").replace(b"\n", b"\\n") + b"\n" for piece in pieces
    )


def main() -> None:
    """Serve a task; with a program, only run it as a rank, for a start by hand."""
    words, env = sys.argv[1:], os.environ
    at = words.index("--") if "--" in words else len(words)
    for word in words[:at]:
        name, _, target = word.partition("=")
        if target in ("RANK", "LOCAL_RANK"):
            if name not in env:
                _fail("%s is not set: is it of another MPI?" % name)
            env[target] = env[name]
    rank, ranks_here = int(env["RANK"]), int(env.get("LOCAL_WORLD_SIZE", "1"))
    env["ROLE_RANK"] = str(rank)
    env["NODE_RANK"] = env["GROUP_RANK"] = str(rank // ranks_here)
    # Otherwise each rank would start a thread for every core.
    env.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // ranks_here)))
    driver = env.pop("MESHTUNE_DRIVER", None)
    if program := words[at + 1 :]:
        kernel.execute(program, env)
    if driver is None:
        Agent(kernel.moved(0, os.O_RDONLY), kernel.moved(1, os.O_WRONLY), rank).serve()
    else:
        try:
            conn = __import__("handshake").call(rank, driver)  # beside this file; few need it
        except OSError as error:
            _fail("cannot reach the driver: %s" % error)
        Agent(conn, conn, rank).serve()


def _fail(why: str) -> NoReturn:
    """Report the error, and exit so that any launcher also ends the other agents."""
    os.write(2, ("meshtune: %s: %s\n" % (os.uname().nodename, why)).encode())
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
