"""Signals to the driver, its clock, and other drivers beside it."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.chaos.faults import CONTINUE, INTERRUPTED, Course, Process, fault
from benchmarks.chaos.invariants import events_of
from benchmarks.chaos.machines import SLOWER
from benchmarks.chaos.plan import Planned
from benchmarks.chaos.world import World
from slurm.kernel import state_and_parent


@fault(weight=3)
def kill_driver(world: World, planned: Planned) -> Course:
    """kill -9."""
    world.disturbed = world.abrupt = True
    with world.may_exit(-signal.SIGKILL):
        world.signal(signal.SIGKILL)
        yield 0.0


@fault()
def hang_up(world: World, planned: Planned) -> Course:
    """Its terminal is closed."""
    world.disturbed = world.abrupt = True
    with world.may_exit(-signal.SIGHUP, CONTINUE, INTERRUPTED):
        world.signal(signal.SIGHUP)
        yield from _exits(world, "SIGHUP")


@fault(weight=2)
def interrupt(world: World, planned: Planned) -> Course:
    """Ctrl-C."""
    with world.may_exit(INTERRUPTED, *_early(world, signal.SIGINT)):
        world.signal(signal.SIGINT)
        yield from _exits(world, "Ctrl-C")


@fault()
def interrupt_twice(world: World, planned: Planned) -> Course:
    """Ctrl-C, and again soon after: quit now."""
    world.disturbed = world.abrupt = True
    with world.may_exit(INTERRUPTED, *_early(world, signal.SIGINT)):
        world.signal(signal.SIGINT)
        driver = world.driver
        yield planned.pick
        if world.driver is driver:  # it may have been fast, or ended by another fault
            world.signal(signal.SIGINT)
            yield from _exits(world, "two Ctrl-C", 10.0)


@fault(weight=2)
def terminate(world: World, planned: Planned) -> Course:
    """SIGTERM, as Slurm sends it before a job's end."""
    with world.may_exit(CONTINUE, *_early(world, signal.SIGTERM)):
        world.signal(signal.SIGTERM)
        yield from _exits(world, "SIGTERM")


@fault()
def drain(world: World, planned: Planned) -> Course:
    """SIGUSR1: the allocation ends soon; what runs may end."""
    early = () if world.opened else (-signal.SIGUSR1,)  # before it can have a handler
    with world.may_exit(CONTINUE, *early):
        world.signal(signal.SIGUSR1)
        yield from _exits(world, "SIGUSR1", 120.0)


@fault(hold_s=(0.5, 3.0))
def suspend(world: World, planned: Planned) -> Course:
    """SIGSTOP, and SIGCONT later."""
    world.signal(signal.SIGSTOP)
    try:
        yield planned.hold_s
    finally:
        world.signal(signal.SIGCONT)


def _early(world: World, number: int) -> tuple[int, ...]:
    """Codes of a driver that is not searching yet, or no more: a signal ends it as any program.

    A Ctrl-C before Python has started is its own traceback, and 1. Of a driver that is stopping a
    second signal is obeyed at once, and its trials may outlive it.
    """
    if world.asked_to_stop:
        world.disturbed = world.abrupt = True
        return (-number, 128 + number)
    world.asked_to_stop = True
    return (-number, INTERRUPTED) if world.opened else (-number, INTERRUPTED, 1)


def _exits(world: World, what: str, within_s: float = 60.0) -> Course:
    within_s *= SLOWER
    driver, deadline = world.driver, time.monotonic() + within_s
    while driver and driver.poll() is None:
        if state_and_parent(driver.pid)[0] == "T":  # suspended, too
            deadline = time.monotonic() + within_s
        if time.monotonic() > deadline:
            world.violate(f"the driver runs {within_s:g} s after {what}")
            return
        yield 0.1


# ---- clocks and other drivers ----


@fault(hold_s=(1.0, 4.0), interrupts=0)
def set_clock(world: World, planned: Planned) -> Course:
    """The driver's wall clock jumps by days, forward or back, and back again."""
    days = 3 if planned.pick < 0.5 else -3
    world.clock_file.write_text(str(86400 * days))
    yield planned.hold_s
    if planned.pick % 0.25 < 0.125:  # in half of the rounds it stays
        world.clock_file.write_text("0")


@fault(weight=1.5, interrupts=0, cost_s=4)
def second_driver(world: World, planned: Planned) -> Course:
    """Somebody starts the same search once more while it runs."""
    first = world.driver
    if not world.journal.exists():
        return
    before = len(events_of(world.journal))
    early = () if world.opened else (2,)  # it may lose the race for the run
    with _other(world, world.run_dir) as other, world.may_exit(*early):
        # If the first is killed just then, the second has the run, and the next is refused.
        world.between.append(lambda: _end(other))
        while other.poll() is None:
            yield 0.1
    # The first may be done, and write its report; a third has perhaps begun since.
    events = [event["event"] for event in events_of(world.journal)]
    done = "closed" in (*events[before:], events[-1])
    if first and first.poll() is None and not done and other.returncode != 2:
        world.violate(f"a second driver on the same folder ended with {other.returncode}, not 2")


@fault(interrupts=0, cost_s=8)
def continued_copy(world: World, planned: Planned) -> Course:
    """A copy of the running run's folder is continued beside it."""
    copy = world.root / "disk" / "copy"
    if not world.journal.exists() or copy.exists():
        return
    try:
        shutil.copytree(world.run_dir, copy, symlinks=True, ignore=_only_small)
    except OSError:  # the disk is full, or a trial removes its folder just then
        shutil.rmtree(copy, ignore_errors=True)  # not even begun, perhaps
        return
    # Two Open MPIs of one user may remove each other's session folder on a host.
    world.disturbed = world.disturbed or world.machine.launcher == "mpiexec"
    with _other(world, copy) as other:
        while other.poll() is None:
            yield 0.1
    if other.returncode not in (0, 1, CONTINUE):
        world.violate(f"the driver of a copied folder ended with {other.returncode}")


@fault(interrupts=0)
def onlookers(world: World, planned: Planned) -> Course:
    """Somebody looks at the run while it is written: its status, or a report of it."""
    if not world.journal.exists():
        return
    command, damages = "status" if planned.pick < 0.5 else "report", world.damages
    with _run(world, [sys.executable, "-m", "meshtune", command, str(world.run_dir)]) as other:
        while other.poll() is None:
            yield 0.1
    said = world.others_said()
    refused = other.returncode == 2 and "meshtune repair" in said and world.damages > damages
    blocked = "report is a file" in said and world.plans("report_unwritable")
    if other.returncode and not (refused or blocked):  # rightly, by what was done meanwhile
        world.violate(f"meshtune {command} ended with {other.returncode}: {said}")


def _only_small(folder: str, names: list[str]) -> set[str]:
    """Pipes and devices are not copied, nor what is large."""
    paths = [Path(folder, name) for name in names]
    return {p.name for p in paths if p.is_fifo() or p.is_symlink() or p.stat().st_size > 1 << 22}


def _other(world: World, run_dir: Path) -> contextlib.AbstractContextManager[Process]:
    """Another driver."""
    return _run(world, world.command(run_dir))


@contextlib.contextmanager
def _run(world: World, command: list[str]) -> Iterator[Process]:
    """A further process, with a log of its own."""
    with world.other_log.open("ab") as log:
        other = subprocess.Popen(
            command, env=world.environment("other"), cwd=world.root,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            yield other
        finally:
            _end(other)


def _end(other: Process) -> None:
    """Politely, and for sure."""
    if other.poll() is None:
        other.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            other.wait(60)
    other.kill()
    other.wait()
