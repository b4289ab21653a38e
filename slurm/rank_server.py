"""A rank that outlives its trial: it has the trainer's imports done and forks one rank per trial.

On many nodes it takes minutes until every rank has read Python and torch from a shared file
system; a fork of a process that has them takes milliseconds. One server runs in each task of a step
and gets its orders as lines of JSON on standard input, which srun hands to all tasks alike:

* ``{"trial", "argv", "cwd", "env", "unset"}``: run this Python command as a rank of that trial;
* ``{"end": signal}``: send the rank and all it has started this signal.

The end of standard input is the driver's: whatever runs is killed. When nothing of a rank is left,
its server says so, on standard output and standard error alike, behind all that the rank had said:
:data:`END_OF_LINE`, then ``MESHTUNE_RANK {"trial", "rank", "code"}`` on a line of its own, which
slurmstepd passes on in one piece; it cuts lines of more than 1 KiB.

``python rank_server.py MODULES`` (names, with commas) is started by its path, by the interpreter of
whatever is trained, and needs nothing but the standard library.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import random
import runpy
import select
import signal
import sys
import types
from pathlib import Path
from typing import Any, Sequence  # noqa: UP035 - an interpreter of the user's may be older

WORD = "MESHTUNE_RANK"
END_OF_LINE = "\x1e\n"  # of a last line that the rank had not ended, or else superfluous
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_AGAIN_S = 0.05  # a process that was being forked may have escaped the signal


class RankServer:
    """Serves one task's orders.

    Args:
        modules: imported before the first fork; what fails here, the rank will meet again.
        rank: this task's number.
    """

    def __init__(self, modules: Sequence[str], rank: int) -> None:
        self._modules = modules
        self._rank = rank
        self._loaded = False
        self._orders = b""
        self._trial = ""  # whose rank runs, or ran last
        self._pid = 0  # of the rank that runs
        self._code: int | None = None  # of the rank that has ended; what it started may run on
        self._leaving = False
        self._processes = _neighbour("processes")
        self._wake, wake_w = os.pipe()
        for end in (self._wake, wake_w):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._leave)  # Slurm sends it to the rank as well
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def serve(self) -> dict[str, Any]:
        """Obey until the orders end, and the process with them.

        Returns:
            In a forked rank alone: what it has to run, see :func:`run_order`.
        """
        while True:
            busy = bool(self._pid) or self._code is not None
            if self._leaving and not busy:
                os._exit(0)
            killing = self._code is not None
            sources = [self._wake, 0]
            ready, _, _ = select.select(sources, [], [], _KILL_AGAIN_S if killing else None)
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            if 0 in ready:
                data = os.read(0, 1 << 16)
                if not data:
                    self._abandon()
                *lines, self._orders = (self._orders + data).split(b"\n")
                for line in lines:
                    order = json.loads(line)
                    if "end" in order:
                        self._signal(order["end"])
                    elif self._fork(order):
                        return dict(order)
            self._reap()

    def _leave(self, *_: object) -> None:
        self._leaving = True

    def _fork(self, order: dict[str, Any]) -> bool:
        """Start the rank; whether this is it."""
        self._trial, self._code = order["trial"], None
        if not self._loaded:
            self._loaded = True
            self._load(order)
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid:
            return False
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, 0)
        os.close(nowhere)
        return True

    def _load(self, order: dict[str, Any]) -> None:
        """Import what ranks need, found as the first of them would find it."""
        before = list(sys.path)
        # Asked of the driver library, it would make CUDA unusable in forks.
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        sys.path.insert(0, _import_folder(order))
        for module in self._modules:
            try:
                importlib.import_module(module)
            except (Exception, SystemExit) as error:
                print(f"meshtune: cannot import {module} beforehand: {error}", file=sys.stderr)
            if module.endswith(".__main__"):
                sys.modules.pop(module, None)  # runpy warns of what it finds there
        sys.path[:] = before
        gc.freeze()  # collections in the ranks then leave the shared pages shared

    def _signal(self, number: int) -> None:
        for pid in self._processes.descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _abandon(self) -> None:
        """The driver is gone: nothing is left running, and nobody is told."""
        while True:
            self._signal(signal.SIGKILL)
            try:
                if os.waitpid(-1, os.WNOHANG) == (0, 0):
                    select.select([self._wake], [], [], _KILL_AGAIN_S)
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake, 4096)
            except ChildProcessError:
                os._exit(0)

    def _reap(self) -> None:
        """Collect what has ended; once the rank has, kill what it left behind, and report."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if self._code is not None:
                    self._report(self._code)
                    self._code = None
                return
            if pid == 0:
                break
            if pid == self._pid:
                self._pid = 0
                killed = os.WIFSIGNALED(status)
                self._code = -os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)
        if self._code is not None:
            self._signal(signal.SIGKILL)

    def _report(self, code: int) -> None:
        told = json.dumps({"trial": self._trial, "rank": self._rank, "code": code})
        for output in (1, 2):
            os.write(output, f"{END_OF_LINE}{WORD} {told}\n".encode())


def run_order(order: dict[str, Any]) -> None:
    """Turn this freshly forked process into a rank, as its command alone would have made it.

    Returns, or raises ``SystemExit``, when the rank's program ends.
    """
    os.chdir(order["cwd"])
    for name in order["unset"]:
        os.environ.pop(name, None)
    os.environ.update(order["env"])
    argv = order["argv"]
    if why := _unfit_for_forks():
        if os.environ.get("RANK") == "0":
            print(f"meshtune: starts afresh, as {why}", file=sys.stderr, flush=True)
        os.execvp(argv[0], argv)
    _seed_afresh()
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None:
        multiprocessing.ORIGINAL_DIR = order["cwd"]  # where its children start
    sys.path.insert(0, _import_folder(order))
    how, rest = parsed_python(argv) or ("", [])
    # As the interpreter does it: a module that stays, for what runs or pickles when it has ended.
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.argv = ["-c", *rest[1:]] if how == "-c" else rest
    if how == "-m":
        run: Any = runpy
        run._run_module_as_main(rest[0])  # what the interpreter itself calls
    elif how == "-c":
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        path = Path(order["cwd"], rest[0])
        main.__file__ = str(path)
        exec(compile(path.read_bytes(), str(path), "exec"), main.__dict__)


def _seed_afresh() -> None:
    """Generators that were seeded when imported, which all trials would share."""
    random.seed()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def parsed_python(argv: Sequence[str]) -> tuple[str, list[str]] | None:
    """A Python command's form (``-m``, ``-c`` or "" for a script) and what follows.

    Returns:
        None if the command is no such, or has options of the interpreter that a fork cannot have.
    """
    program, rest = Path(argv[0]).name, list(argv[1:])
    if not program.startswith("python"):
        return None
    while rest and rest[0] == "-u":  # every rank is unbuffered
        del rest[0]
    if len(rest) > 1 and rest[0] in ("-m", "-c"):
        return rest[0], rest[1:]
    return ("", rest) if rest and not rest[0].startswith("-") else None


def _import_folder(order: dict[str, Any]) -> str:
    """What the interpreter puts first on ``sys.path`` for a command."""
    how, rest = parsed_python(order["argv"]) or ("", [""])
    cwd = str(order["cwd"])
    if how:
        return cwd if how == "-m" else ""
    return str(Path(cwd, rest[0]).resolve().parent)


def _unfit_for_forks() -> str:
    """Why what has been imported does not survive a fork; "" if it does."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and getattr(torch.cuda, "_is_in_bad_fork", bool)():
        return "an import has initialized the GPU"
    threads = len(list(Path("/proc", str(os.getppid()), "task").iterdir()))
    return f"imports have started {threads - 1} threads" if threads > 1 else ""


def _neighbour(name: str) -> Any:
    """A module of the standard library alone beside this file, of whose package nothing is seen."""
    spec = importlib.util.spec_from_file_location(
        f"_meshtune_{name}", Path(__file__).with_name(f"{name}.py")
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def main() -> None:
    """Serve; in a forked rank, run it."""
    # Python has put this file's folder first, whose modules are nobody's business.
    own = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != own]
    modules = [name for name in sys.argv[1].split(",") if name]
    run_order(RankServer(modules, int(os.environ["RANK"])).serve())


if __name__ == "__main__":
    main()
