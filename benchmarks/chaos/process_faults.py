"""Faults that kill or stop processes of trials."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from benchmarks.chaos.faults import LOCAL, Course, chosen, fault
from benchmarks.chaos.machines import command_line, marked, parent
from benchmarks.chaos.plan import Planned
from benchmarks.chaos.slurm_machine import Slurm
from benchmarks.chaos.world import World
from slurm import processes


def ranks(world: World) -> list[int]:
    """Processes of trainers, and what they have started."""
    lines = {pid: command_line(pid) for pid in sorted(marked(world.marker))}
    found = [pid for pid, line in lines.items() if "chaos.trainers" in line]
    return [pid for pid in found if processes.name(pid).startswith("python")]  # no srun


@fault(weight=2)
def kill_rank(world: World, planned: Planned) -> Course:
    """One process of one trial, as the kernel does when memory runs out."""
    yield from _kill_trainers(world, planned, lambda pids, one: [one])


@fault()
def kill_ranks(world: World, planned: Planned) -> Course:
    """All processes of the trainers."""
    yield from _kill_trainers(world, planned, lambda pids, one: pids)


def _kill_trainers(
    world: World, planned: Planned, choose: Callable[[list[int], int], list[int]]
) -> Course:
    world.disturbed = True
    if pids := ranks(world):
        processes.send(choose(pids, chosen(pids, planned)), signal.SIGKILL)
    yield 0.0


@fault(weight=2)
def kill_agent(world: World, planned: Planned) -> Course:
    """The process that answers for ranks of a trial."""
    yield from _to_an_agent(world, planned, signal.SIGKILL)


@fault(cost_s=20)
def stop_agent(world: World, planned: Planned) -> Course:
    """An agent that says nothing any more, and holds what its ranks say."""
    yield from _to_an_agent(world, planned, signal.SIGSTOP)


def _to_an_agent(world: World, planned: Planned, number: signal.Signals) -> Course:
    world.disturbed = True
    if found := agents(world):
        processes.send([chosen(found, planned)], number)
    yield 0.0


def agents(world: World) -> list[int]:
    """Agents of the trials that run: of a step's tasks, or forked from the local fork server."""
    servers = set(fork_servers(world))
    forked = [p for p in servers if parent(p) in servers and parent(parent(p)) not in servers]
    marks = [pid for pid in marked(world.marker) if processes.AGENT in command_line(pid).split()]
    return sorted(forked + [pid for pid in marks if processes.name(pid).startswith("python")])


@fault(launchers=LOCAL)
def kill_fork_server(world: World, planned: Planned) -> Course:
    """The process that local agents are forked from."""
    world.disturbed = True
    for pid in fork_servers(world):
        if world.driver and parent(pid) == world.driver.pid:
            processes.send([pid], signal.SIGKILL)
    yield 0.0


def fork_servers(world: World) -> list[int]:
    """The fork server, its agents, and ranks that have not become a trainer yet."""
    found = sorted(marked(world.marker))
    return [pid for pid in found if "slurm.local.server" in command_line(pid)]


@fault(weight=1.5, hold_s=(6.0, 30.0), cost_s=12)
def suspend_job(world: World, planned: Planned) -> Course:
    """The job is suspended and resumed: all processes stop, of those in no step only the driver.

    With Slurm the driver runs on in half of the rounds, as one on a login node does. A driver that
    is killed meanwhile ends the suspension: what it has started could not end.
    """
    slurm = world.machine if isinstance(world.machine, Slurm) else None
    outside = slurm is not None and planned.pick * 7 % 1 < 0.5
    # Sruns and agents resume one by one, and Open MPI gives up a launch whose start it interrupts.
    world.disturbed = world.disturbed or world.machine.launcher != "local"
    driver, stopped = world.driver, set[int]()
    job = slurm.job if slurm else ""
    try:
        while not outside and (more := marked(world.marker) - stopped):  # forked meanwhile
            processes.send(more, signal.SIGSTOP)
            stopped |= more
        if slurm:
            slurm.ask("scontrol", "suspend", job)
        until_s = time.monotonic() + planned.hold_s
        while time.monotonic() < until_s and world.running and world.driver is driver:
            yield 0.0
    finally:
        processes.send(stopped, signal.SIGCONT)
        resumed = slurm is None or slurm.resume(job)
    while slurm and not resumed:  # its controller is away
        yield 0.5
        resumed = slurm.resume(job)
