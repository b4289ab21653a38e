"""What is injected: signals, lost processes, full disks, moved clocks, other drivers.

A fault is a generator function of the round and of what was drawn for it; it does something, and
each ``yield`` lets the search go on for so many seconds. At the round's end it is closed, so what
has to be undone stands in a ``finally``. To add one: a function with ``@fault(...)`` here or in
:mod:`benchmarks.chaos.slurm_faults`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.chaos.invariants import finished
from benchmarks.chaos.machines import command_line, marked, parent, until
from slurm import processes

if TYPE_CHECKING:
    from benchmarks.chaos.plan import Planned
    from benchmarks.chaos.world import World

Act = Callable[["World", "Planned"], Iterator[float]]
BOTH, LOCAL, SRUN = ("local", "srun"), ("local",), ("srun",)
CONTINUE, INTERRUPTED = 3, 130


@dataclass(frozen=True)
class Fault:
    """A row of the table of faults.

    Attributes:
        act: what it does.
        launchers: with which it can be.
        weight: how often it is drawn, relative to others.
        hold_s: the least and the most that it lasts.
        interrupts: how many times it can make one trial run again.
        cost_s: time that it costs a round.
    """

    act: Act
    launchers: tuple[str, ...] = BOTH
    weight: float = 1.0
    hold_s: tuple[float, float] = (0.0, 0.0)
    interrupts: int = 1
    cost_s: float = 3.0


FAULTS: dict[str, Fault] = {}


def fault(**row: Any) -> Callable[[Act], Act]:
    """Make a generator function a fault; see :class:`Fault`."""

    def add(act: Act) -> Act:
        FAULTS[act.__name__] = Fault(act, **row)
        return act

    return add


# ---- signals to the driver ----


@fault(weight=3)
def kill_driver(world: World, planned: Planned) -> Iterator[float]:
    """kill -9."""
    world.disturbed = world.abrupt = True
    with world.may_exit(-signal.SIGKILL):
        world.signal(signal.SIGKILL)
        yield 0.0


@fault()
def hang_up(world: World, planned: Planned) -> Iterator[float]:
    """Its terminal is closed."""
    world.disturbed = world.abrupt = True
    with world.may_exit(-signal.SIGHUP, CONTINUE, INTERRUPTED):
        world.signal(signal.SIGHUP)
        yield from _exits(world, "SIGHUP")


@fault(weight=2)
def interrupt(world: World, planned: Planned) -> Iterator[float]:
    """Ctrl-C."""
    with world.may_exit(INTERRUPTED, *_early(world, signal.SIGINT)):
        world.signal(signal.SIGINT)
        yield from _exits(world, "Ctrl-C")


@fault()
def interrupt_twice(world: World, planned: Planned) -> Iterator[float]:
    """Ctrl-C, and again soon after: quit now."""
    world.disturbed = world.abrupt = True
    with world.may_exit(INTERRUPTED, *_early(world, signal.SIGINT)):
        world.signal(signal.SIGINT)
        yield planned.pick
        world.signal(signal.SIGINT)
        yield from _exits(world, "two Ctrl-C", 10.0)


@fault(weight=2)
def terminate(world: World, planned: Planned) -> Iterator[float]:
    """SIGTERM, as Slurm sends it before a job's end."""
    with world.may_exit(CONTINUE, *_early(world, signal.SIGTERM)):
        world.signal(signal.SIGTERM)
        yield from _exits(world, "SIGTERM")


@fault()
def drain(world: World, planned: Planned) -> Iterator[float]:
    """SIGUSR1: the allocation ends soon; what runs may end."""
    early = () if world.lines else (-signal.SIGUSR1,)  # before it can have a handler
    with world.may_exit(CONTINUE, *early):
        world.signal(signal.SIGUSR1)
        yield from _exits(world, "SIGUSR1", 120.0)


@fault(hold_s=(0.5, 3.0))
def suspend(world: World, planned: Planned) -> Iterator[float]:
    """SIGSTOP, and SIGCONT later."""
    world.signal(signal.SIGSTOP)
    try:
        yield planned.hold_s
    finally:
        world.signal(signal.SIGCONT)


def _early(world: World, number: int) -> tuple[int, ...]:
    """Before the search has begun a signal does what it does to any program; after it, too."""
    return (-number, INTERRUPTED)


def _exits(world: World, what: str, within_s: float = 60.0) -> Iterator[float]:
    driver, deadline = world.driver, time.monotonic() + within_s
    while driver and driver.poll() is None:
        if time.monotonic() > deadline:
            world.violate(f"the driver runs {within_s:g} s after {what}")
            return
        yield 0.1


# ---- processes of trials ----


def ranks(world: World) -> list[int]:
    """Processes of trainers, and what they have started."""
    return [pid for pid in sorted(marked(world.marker)) if "chaos/trainers.py" in command_line(pid)]


@fault(weight=2)
def kill_rank(world: World, planned: Planned) -> Iterator[float]:
    """One process of one trial, as the kernel does when memory runs out."""
    yield from _kill_trainers(world, planned, lambda pids, one: [one])


@fault()
def kill_ranks(world: World, planned: Planned) -> Iterator[float]:
    """All processes of the trainers that there are."""
    yield from _kill_trainers(world, planned, lambda pids, one: pids)


def _kill_trainers(
    world: World, planned: Planned, choose: Callable[[list[int], int], list[int]]
) -> Iterator[float]:
    if pids := ranks(world):
        for pid in choose(pids, chosen(pids, planned)):
            world.excuse(processes.environ(pid).get("MESHTUNE_TRIAL", ""))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    yield 0.0


@fault(launchers=LOCAL, weight=2)
def kill_shepherd(world: World, planned: Planned) -> Iterator[float]:
    """The process that answers for a trial's ranks."""
    world.disturbed = True
    servers = set(fork_servers(world))
    found = [pid for pid in servers if parent(pid) in servers and _is_shepherd(pid, servers)]
    if found:
        _kill(chosen(found, planned))
    yield 0.0


@fault(launchers=LOCAL)
def kill_fork_server(world: World, planned: Planned) -> Iterator[float]:
    """The process that shepherds are forked from."""
    world.disturbed = True
    for pid in fork_servers(world):
        if world.driver and parent(pid) == world.driver.pid:
            _kill(pid)
    yield 0.0


def fork_servers(world: World) -> list[int]:
    """The fork server, its shepherds, and ranks that have not become a trainer yet."""
    found = sorted(marked(world.marker))
    return [pid for pid in found if "slurm.local.fork_server" in command_line(pid)]


def _is_shepherd(pid: int, servers: set[int]) -> bool:
    return parent(parent(pid)) not in servers


def chosen(items: list[Any], planned: Planned) -> Any:
    return items[int(planned.pick * len(items))]


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


# ---- files ----


@fault(hold_s=(0.5, 3.0), cost_s=4)
def disk_full(world: World, planned: Planned) -> Iterator[float]:
    """The run's file system is full for seconds: where it can be mounted, a small one."""
    if not os.path.ismount(world.root / "disk"):
        return
    world.disturbed = True
    filler = world.root / "disk" / "filler"
    with world.may_exit(1, CONTINUE):
        try:
            _fill(filler)
            yield planned.hold_s
        finally:
            filler.unlink(missing_ok=True)
        yield 1.0  # a driver that has met it may be leaving


def _fill(path: Path) -> None:
    """Take the last byte of the file system."""
    for size in (1 << 20, 4096):
        with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
            while file.write(bytes(size)):
                pass


@fault()
def cut_journal(world: World, planned: Planned) -> Iterator[float]:
    """kill -9, and the journal's end is lost with it: at any byte of what it had last."""
    world.disturbed = world.abrupt = True

    def cut() -> None:
        size = world.journal.stat().st_size if world.journal.exists() else 0
        # Steps of Slurm outlive their driver: that they were started must not be forgotten.
        last = world.journal.read_bytes().rstrip(b"\n").rfind(b"\n") + 1 if size else 0
        low = 0 if world.machine.launcher == "local" else min(last + 1, size)
        cut_at(world, low + int(planned.pick * (size - low)))

    with world.may_exit(-signal.SIGKILL):
        world.between.append(cut)
        world.signal(signal.SIGKILL)
        yield 0.0


def cut_at(world: World, position: int) -> None:
    """Cut the journal; what has finished by then is what may not be lost from here on."""
    if not position and not world.journal.exists():
        return
    if world.machine.launcher == "local":
        until(lambda: not marked(world.marker), 20)
    os.truncate(world.journal, position)
    world.finished = finished(world.journal)


@fault(hold_s=(1.0, 3.0), interrupts=0)
def results_unwritable(world: World, planned: Planned) -> Iterator[float]:
    """A folder is where ``results.csv`` should be."""
    path = world.run_dir / "results.csv"
    if not world.run_dir.is_dir():
        return
    try:
        with contextlib.suppress(OSError):  # the driver has written it again meanwhile
            path.unlink(missing_ok=True)
            path.mkdir()
        yield planned.hold_s
    finally:
        if path.is_dir():
            path.rmdir()


@fault(hold_s=(1.0, 8.0), interrupts=0)
def report_unwritable(world: World, planned: Planned) -> Iterator[float]:
    """A file is where the report's folder should be."""
    path = world.run_dir / "report"
    if not world.run_dir.is_dir() or path.exists():
        return
    try:
        path.write_text("")
        yield planned.hold_s
    finally:
        if path.is_file():
            path.unlink()


# ---- clocks and other drivers ----


@fault(hold_s=(1.0, 4.0), interrupts=0)
def set_clock(world: World, planned: Planned) -> Iterator[float]:
    """The driver's wall clock jumps by days, forward or back, and back again."""
    days = 3 if planned.pick < 0.5 else -3
    world.clock_file.write_text(str(86400 * days))
    yield planned.hold_s
    if planned.pick % 0.25 < 0.125:  # in half of the rounds it stays
        world.clock_file.write_text("0")


@fault(weight=1.5, interrupts=0, cost_s=4)
def second_driver(world: World, planned: Planned) -> Iterator[float]:
    """Somebody starts the same search once more while it runs."""
    first = world.driver
    if not world.journal.exists():
        return
    with _other(world, world.run_dir) as other:
        while other.poll() is None:
            yield 0.1
    if first and first.poll() is None and other.returncode != 2:
        world.violate(f"a second driver on the same folder ended with {other.returncode}, not 2")


@fault(interrupts=0, cost_s=8)
def continued_copy(world: World, planned: Planned) -> Iterator[float]:
    """A copy of the running run's folder is continued beside it."""
    copy = world.root / "disk" / "copy"
    if not world.journal.exists() or copy.exists():
        return
    shutil.copytree(world.run_dir, copy, symlinks=True, ignore=_only_small)
    with _other(world, copy) as other:
        while other.poll() is None:
            yield 0.1
    if other.returncode not in (0, 1, CONTINUE):
        world.violate(f"the driver of a copied folder ended with {other.returncode}")


def _only_small(folder: str, names: list[str]) -> set[str]:
    """Pipes and devices are not copied, nor what is large."""
    paths = [Path(folder, name) for name in names]
    return {p.name for p in paths if p.is_fifo() or p.is_symlink() or p.stat().st_size > 1 << 22}


@contextlib.contextmanager
def _other(world: World, run_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another driver; what it says goes to a log of its own."""
    with (world.root / "other.log").open("ab") as log:
        other = subprocess.Popen(
            world.command(run_dir), env=world.environment("other"), cwd=world.root,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            yield other
        finally:
            if other.poll() is None:
                other.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    other.wait(60)
            other.kill()
            other.wait()
