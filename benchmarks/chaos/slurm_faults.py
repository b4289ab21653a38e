"""Faults of a Slurm: dead daemons, lost nodes, cancelled steps and jobs.

The commands that time out are Slurm's own, behind a script that fails at random while a fault says
so; all else happens to real daemons.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path

from benchmarks import power_cuts
from benchmarks.chaos.faults import CONTINUE, SRUN, Course, chosen, fault
from benchmarks.chaos.machines import marked
from benchmarks.chaos.plan import Planned
from benchmarks.chaos.process_faults import agents
from benchmarks.chaos.slurm_machine import Slurm
from benchmarks.chaos.world import World
from slurm import processes

COMMANDS = ("squeue", "sinfo", "scontrol", "scancel")
WRAPPER = """#!/bin/sh
if [ -e {flag} ] && [ "$(od -An -N1 -tu1 /dev/urandom)" -lt "$(cat {flag})" ]; then
  sleep 1
  echo "{name}: error: slurm_receive_msg: Socket timed out on send/recv operation" >&2
  exit 1
fi
exec {program} "$@"
"""


def _slurm(world: World) -> Slurm:
    assert isinstance(world.machine, Slurm)
    return world.machine


# ---- processes ----


@fault(launchers=SRUN, weight=2)
def kill_srun(world: World, planned: Planned) -> Course:
    """An srun that waits for its step, from outside."""
    world.disturbed = True
    found = [pid for pid in sorted(marked(world.marker)) if processes.name(pid) == "srun"]
    if found:
        number = signal.SIGKILL if planned.pick * 7 % 1 < 0.7 else signal.SIGTERM
        processes.send([chosen(found, planned)], number)
    yield 0.0


@fault(launchers=SRUN, cost_s=20)
def stop_srun(world: World, planned: Planned) -> Course:
    """An srun, with its helper, that neither ends nor passes anything on."""
    world.disturbed = True
    found = [pid for pid in sorted(marked(world.marker)) if processes.name(pid) == "srun"]
    if found:
        victim = chosen(found, planned)
        together = {pid for pid in found if os.getpgid(pid) == os.getpgid(victim)}
        processes.send(together, signal.SIGSTOP)
    yield 0.0


@fault(launchers=SRUN)
def kill_step_daemon(world: World, planned: Planned) -> Course:
    """A node's slurmstepd, which answers for the ranks there; Slurm may list its step for ever."""
    world.disturbed = world.lists_for_ever = True
    if found := _step_daemons(world):
        processes.send([chosen(found, planned)], signal.SIGKILL)
    yield 0.0


@fault(launchers=SRUN, hold_s=(1.0, 30.0), interrupts=2, cost_s=20)
def stop_step_daemon(world: World, planned: Planned) -> Course:
    """A node's slurmstepd passes nothing on for a while; Slurm may drain the node for it."""
    world.disturbed = world.lists_for_ever = True
    stopped = [chosen(found, planned)] if (found := _step_daemons(world)) else []
    with world.may_exit(CONTINUE):
        try:
            processes.send(stopped, signal.SIGSTOP)
            yield planned.hold_s
        finally:
            processes.send(stopped, signal.SIGCONT)


def _step_daemons(world: World) -> list[int]:
    nodes = _slurm(world).cluster.nodes
    return sorted(pid for node in nodes for pid in _slurm(world).on_node(node, "slurmstepd"))


@fault(launchers=SRUN)
def garble_words(world: World, planned: Planned) -> Course:
    """Somebody with the right to writes into the connection of an agent with its driver."""
    world.disturbed = True
    garbage = (b"\xff\0 no word\n", b"0 end 0\n", b"99 gone\n", b"0 end 1e999 0\n", b"x" * 5000)
    if found := agents(world):
        pid = chosen(found, planned)
        for end in range(10, 20):  # where an agent has moved its standard streams
            with contextlib.suppress(OSError):  # of orders, or none
                if Path(f"/proc/{pid}/fd/{end}").readlink().name.startswith("pipe:"):
                    pipe = os.open(f"/proc/{pid}/fd/{end}", os.O_WRONLY | os.O_NONBLOCK)
                    os.write(pipe, garbage[int(997 * planned.pick) % len(garbage)])
                    os.close(pipe)
    yield 0.0


# ---- daemons and nodes ----


@fault(launchers=SRUN, weight=2, hold_s=(0.5, 8.0), interrupts=2, cost_s=10)
def kill_controller(world: World, planned: Planned) -> Course:
    """slurmctld dies and restarts from its saved state, which has too many or too few steps."""
    world.disturbed = world.lists_for_ever = True
    with world.may_exit(CONTINUE):  # it may have forgotten the job itself
        try:
            _slurm(world).kill_controller()
            yield planned.hold_s
        finally:
            _slurm(world).start_controller()
        yield 1.0


@fault(launchers=SRUN, hold_s=(1.0, 15.0), interrupts=2, cost_s=10)
def stop_controller(world: World, planned: Planned) -> Course:
    """slurmctld answers nobody for a while."""
    world.disturbed = True
    stopped = _slurm(world).controller()
    with world.may_exit(CONTINUE):
        try:
            processes.send(stopped, signal.SIGSTOP)
            yield planned.hold_s
        finally:
            processes.send(stopped, signal.SIGCONT)
        yield 1.0


@fault(launchers=SRUN, hold_s=(0.5, 6.0), cost_s=6)
def kill_slurmd(world: World, planned: Planned) -> Course:
    """A node's slurmd dies and restarts before Slurm marks the node down; its steps continue."""
    world.disturbed = True
    if not (nodes := _slurm(world).nodes()):
        return
    node = chosen(nodes, planned)
    with world.may_exit(CONTINUE):  # too few nodes are left: the others are quarantined
        try:
            _slurm(world).kill_slurmd(node)
            yield planned.hold_s
        finally:
            _slurm(world).start_slurmd(node)
        yield 1.0


@fault(launchers=SRUN, weight=0.7, hold_s=(30, 30), interrupts=2, cost_s=20)
def kill_node(world: World, planned: Planned) -> Course:
    """A node loses its power; it comes back for the next allocation."""
    world.disturbed = True
    nodes = [n for n in _slurm(world).nodes() if n not in _slurm(world).dead]
    if len(nodes) < 2:
        return
    node = chosen(nodes, planned)
    with world.may_exit(CONTINUE):  # too few nodes are left for wide trials
        _slurm(world).dead.add(node)
        power_cuts.kill_node(_slurm(world).cluster, node)
        yield planned.hold_s


@fault(launchers=SRUN, weight=0.7, hold_s=(5, 20), interrupts=2, cost_s=15)
def reboot_node(world: World, planned: Planned) -> Course:
    """A node starts anew, with another boot time; Slurm has not missed it."""
    world.disturbed = world.lists_for_ever = True
    nodes = [n for n in _slurm(world).nodes() if n not in _slurm(world).dead]
    if len(nodes) < 2:
        return
    with world.may_exit(CONTINUE):
        _slurm(world).reboot(chosen(nodes, planned))
        yield planned.hold_s


@fault(launchers=SRUN, hold_s=(1.0, 15.0), interrupts=2, cost_s=10)
def kill_munge(world: World, planned: Planned) -> Course:
    """Munge is away: every message between Slurm's programs is refused."""
    world.disturbed = world.lists_for_ever = True
    with world.may_exit(1, CONTINUE):
        try:
            _slurm(world).kill_munged()
            yield planned.hold_s
        finally:
            _slurm(world).start_munged()
        yield 1.0


@fault(launchers=SRUN, hold_s=(2.0, 8.0), cost_s=4)
def drain_node(world: World, planned: Planned) -> Course:
    """An administrator drains a node, and resumes it."""
    world.disturbed = True
    if not (nodes := _slurm(world).nodes()):
        return
    node = f"nodename={chosen(nodes, planned)}"
    with world.may_exit(CONTINUE):
        try:
            _slurm(world).ask("scontrol", "update", node, "state=drain", "reason=chaos")
            yield planned.hold_s
        finally:
            _slurm(world).ask("scontrol", "update", node, "state=resume")


# ---- what people do ----


@fault(launchers=SRUN, weight=2)
def cancel_step(world: World, planned: Planned) -> Course:
    """scancel of a running step."""
    world.disturbed = True
    job = _slurm(world).job
    if steps := [s for s in _slurm(world).steps() if s.startswith(f"{job}.")]:
        _slurm(world).ask("scancel", chosen(steps, planned))
    yield 0.0


@fault(launchers=SRUN, weight=2)
def signal_steps(world: World, planned: Planned) -> Course:
    """A signal to the tasks of all running steps, as people or schedulers send it."""
    world.disturbed = True
    job = _slurm(world).job
    for step in _slurm(world).steps():
        if step.startswith(f"{job}."):
            _slurm(world).ask("scancel", "-s", ("INT", "TERM")[planned.pick < 0.5], step)
    yield 0.0


@fault(launchers=SRUN, weight=1.5, cost_s=8)
def cancel_job(world: World, planned: Planned) -> Course:
    """scancel of the whole allocation."""
    world.disturbed = True
    with world.may_exit(CONTINUE):
        _slurm(world).cancel()
        yield 5.0


@fault(launchers=SRUN, cost_s=8)
def array_task(world: World, planned: Planned) -> Course:
    """scancel of the allocation; the next is the last task of a job array, with the array's id."""
    world.disturbed = True
    with world.may_exit(CONTINUE):
        _slurm(world).in_array = True
        _slurm(world).cancel()
        yield 5.0


@fault(launchers=SRUN, cost_s=8)
def resize_job(world: World, planned: Planned) -> Course:
    """Somebody takes nodes from the allocation: one, or all but one."""
    world.disturbed = True
    nodes = _slurm(world).nodes()
    left = 1 if planned.pick < 0.3 else len(nodes) - 1
    if left < 1:
        return
    with world.may_exit(CONTINUE):  # too few nodes are left for wide trials
        _slurm(world).is_ending = True  # the next driver has another
        job = f"JobId={_slurm(world).job}"
        # It leaves a script for the job's shell where it runs.
        _slurm(world).ask(
            "env", "-C", str(world.root), "scontrol", "update", job, f"NumNodes={left}"
        )
        yield 5.0


@fault(launchers=SRUN, hold_s=(5.0, 60.0), interrupts=0)
def prolog_prints(world: World, planned: Planned) -> Course:
    """A site's TaskProlog greets every task on its standard output."""
    try:
        _slurm(world).greeting.touch()
        yield planned.hold_s
    finally:
        _slurm(world).greeting.unlink(missing_ok=True)


@fault(launchers=SRUN, weight=1.5, cost_s=12)
def preempt(world: World, planned: Planned) -> Course:
    """A job of higher priority takes the allocation, at once or after a grace time."""
    world.disturbed = True
    grace_s = 0 if planned.pick < 0.5 else 5
    _slurm(world).ask("scontrol", "update", "PartitionName=batch", f"GraceTime={grace_s}")
    with world.may_exit(CONTINUE), _slurm(world).urgent_job():
        yield 8.0


@fault(launchers=SRUN, weight=0.4, cost_s=20)
def shorten_limit(world: World, planned: Planned) -> Course:
    """An administrator shortens the job's time limit to a minute from its start."""
    world.disturbed = True
    job = _slurm(world).job
    _slurm(world).is_ending = True
    _slurm(world).ask("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    with world.may_exit(CONTINUE):
        while _slurm(world).job == job and _slurm(world).job_state() == "RUNNING":
            yield 1.0
        yield 5.0


@fault(launchers=SRUN, weight=2, hold_s=(2.0, 12.0), cost_s=10)
def commands_time_out(world: World, planned: Planned) -> Course:
    """Slurm's commands fail at random, as those of a controller with too much to do."""
    world.disturbed = True
    flag = world.root / "bin" / "failing"
    for name in COMMANDS:
        wrapper = world.root / "bin" / name
        program = shutil.which(name, path=_without(str(wrapper.parent)))
        wrapper.write_text(WRAPPER.format(flag=flag, name=name, program=program))
        wrapper.chmod(0o755)
    with world.may_exit(CONTINUE):
        try:
            flag.write_text(str(100 + int(100 * planned.pick)))  # of 256
            yield planned.hold_s
        finally:
            flag.unlink(missing_ok=True)


def _without(folder: str) -> str:
    path = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(p for p in path if Path(p) != Path(folder))
