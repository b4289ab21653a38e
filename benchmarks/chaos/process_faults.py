"""Faults that kill processes of trials."""

from __future__ import annotations

import signal
from collections.abc import Callable

from benchmarks.chaos.faults import LOCAL, Course, chosen, fault
from benchmarks.chaos.machines import command_line, marked, parent
from benchmarks.chaos.plan import Planned
from benchmarks.chaos.world import World
from slurm import processes


def ranks(world: World) -> list[int]:
    """Processes of trainers, and what they have started."""
    found = [pid for pid in sorted(marked(world.marker)) if "chaos.trainers" in command_line(pid)]
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
    if pids := ranks(world):
        for pid in choose(pids, chosen(pids, planned)):
            world.excuse(processes.environ(pid).get("MESHTUNE_TRIAL", ""))
            processes.send([pid], signal.SIGKILL)
    yield 0.0


@fault(launchers=LOCAL, weight=2)
def kill_shepherd(world: World, planned: Planned) -> Course:
    """The process that answers for a trial's ranks."""
    world.disturbed = True
    servers = set(fork_servers(world))
    found = [pid for pid in servers if parent(pid) in servers and _is_shepherd(pid, servers)]
    if found:
        processes.send([chosen(found, planned)], signal.SIGKILL)
    yield 0.0


@fault(launchers=LOCAL)
def kill_fork_server(world: World, planned: Planned) -> Course:
    """The process that shepherds are forked from."""
    world.disturbed = True
    for pid in fork_servers(world):
        if world.driver and parent(pid) == world.driver.pid:
            processes.send([pid], signal.SIGKILL)
    yield 0.0


def fork_servers(world: World) -> list[int]:
    """The fork server, its shepherds, and ranks that have not become a trainer yet."""
    found = sorted(marked(world.marker))
    return [pid for pid in found if "slurm.local.server" in command_line(pid)]


def _is_shepherd(pid: int, servers: set[int]) -> bool:
    return parent(parent(pid)) not in servers
