"""Faults of an mpiexec: itself, its daemons, and the hosts that it reaches."""

from __future__ import annotations

import signal

from benchmarks.chaos.faults import CONTINUE, MPIEXEC, Course, chosen, fault
from benchmarks.chaos.machines import Mpiexec, marked
from benchmarks.chaos.plan import Planned
from benchmarks.chaos.world import World
from slurm import processes

_STARTERS = ("mpiexec", "mpirun", "orterun", "prterun")
_DAEMONS = ("orted", "prted")


@fault(launchers=MPIEXEC, weight=2)
def kill_mpiexec(world: World, planned: Planned) -> Course:
    """An mpiexec, from outside; sometimes in a way that it may leave in order."""
    number = signal.SIGKILL if planned.pick * 7 % 1 < 0.7 else signal.SIGTERM
    yield from _to_one_of(_STARTERS, world, planned, number)


@fault(launchers=MPIEXEC, cost_s=20)
def stop_mpiexec(world: World, planned: Planned) -> Course:
    """An mpiexec that does not end any more."""
    yield from _to_one_of(_STARTERS, world, planned, signal.SIGSTOP)


@fault(launchers=MPIEXEC, weight=2, cost_s=8)
def kill_host_daemon(world: World, planned: Planned) -> Course:
    """A host's daemon of mpiexec, which leaves what it has started."""
    with world.may_exit(CONTINUE):  # its host is quarantined
        yield from _to_one_of(_DAEMONS, world, planned, signal.SIGKILL)


def _to_one_of(
    names: tuple[str, ...], world: World, planned: Planned, number: signal.Signals
) -> Course:
    world.disturbed = True
    found = [pid for pid in sorted(marked(world.marker)) if processes.name(pid) in names]
    if found:
        processes.send([chosen(found, planned)], number)
    yield 0.0


@fault(launchers=MPIEXEC, weight=0.7, hold_s=(5.0, 30.0), interrupts=2, cost_s=20)
def kill_host(world: World, planned: Planned) -> Course:
    """A host loses its power; it comes back for the next driver."""
    world.disturbed = True
    assert isinstance(world.machine, Mpiexec)
    with world.may_exit(CONTINUE):  # too few hosts are left for wide trials
        world.machine.strike(chosen(world.machine.hosts, planned))
        yield planned.hold_s
