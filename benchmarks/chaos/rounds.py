"""Playing a round: drivers one after the other until the search is done, faults meanwhile."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos.drawing import FAULTS
from benchmarks.chaos.faults import Course
from benchmarks.chaos.invariants import check_round, check_session
from benchmarks.chaos.machines import SLOWER, Machine
from benchmarks.chaos.plan import Plan, Planned
from benchmarks.chaos.world import World

TICK_S = 0.03
# A round that takes longer is stuck.
ROUND_S = {"local": 900.0 * SLOWER, "srun": 1200.0 * SLOWER, "mpiexec": 1200.0 * SLOWER}
ABORT_S = 5.0 * SLOWER  # to print where it is


@dataclass(frozen=True)
class Played:
    """The result of a round.

    Attributes:
        violations: sentences; empty if all held.
        injected: faults that had their occasion.
        sessions: drivers that it took.
        seconds: from start to end.
        peak_bytes: the most memory of a driver.
        kept: the round's folder, if it was kept.
    """

    plan: Plan
    violations: tuple[str, ...]
    injected: tuple[str, ...]
    sessions: int
    seconds: float
    peak_bytes: int
    kept: Path | None


class Injector:
    """Starts a plan's faults when their time comes, and keeps them going."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting = list(world.plan.faults)
        self._due: dict[int, float] = {}  # by id of a waiting fault whose line was written
        self._active: list[tuple[float, Course]] = []
        self.injected: list[str] = []

    def tick(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        for planned in [f for f in self._waiting if self._world.lines >= f.after]:
            if now >= self._due.setdefault(id(planned), now + planned.delay_s):
                self._waiting.remove(planned)
                self._start(planned)
        for entry in [e for e in self._active if now >= e[0]]:
            self._active.remove(entry)
            self._resume(entry[1])

    def close(self) -> None:
        """Undo what is still being done."""
        for _, generator in self._active:
            generator.close()
        self._active.clear()

    def _start(self, planned: Planned) -> None:
        self.injected.append(planned.fault)
        with self._world.log.open("a") as log:
            log.write(f"---- {planned.fault} {planned.hold_s:g} s, {planned.pick}\n")
        self._resume(FAULTS[planned.fault].act(self._world, planned))

    def _resume(self, generator: Course) -> None:
        with contextlib.suppress(StopIteration):
            self._active.append((time.monotonic() + next(generator), generator))


def play(plan: Plan, machine: Machine, keep: bool = False) -> Played:
    """Play a round and check it.

    Args:
        plan: what is done.
        machine: where; has to be that of the plan's launcher.
        keep: whether to leave the folder of a round that fails.
    """
    began = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="chaos-"))
    with World(plan, machine, root) as world:
        injector = Injector(world)
        try:
            _search(world, injector)
        finally:
            injector.close()
        if not world.violations:
            if world.put_back:
                world.ask(*world.command())  # which writes what a finished run lacks
            world.violations += check_round(world)
        machine.clean()
        kept = root if keep and world.violations else None
    if kept is None:
        world.remove()
    return Played(
        plan,
        tuple(world.violations),
        tuple(injector.injected),
        world.sessions,
        time.monotonic() - began,
        world.peak_bytes,
        kept,
    )


def _search(world: World, injector: Injector) -> None:
    """Start drivers until one of them is done, or something is violated."""
    most = 4 + 2 * len(world.plan.faults)
    # Of a moment in which the campaign itself got no CPU, drivers have had none either.
    left_s, seen = ROUND_S[world.plan.launcher], time.monotonic()
    while world.sessions < most:
        world.start_driver()
        assert world.driver is not None
        if world.violations:  # by what was done before this driver, which is ended with its world
            return
        while world.driver.poll() is None:
            now = time.monotonic()
            left_s, seen = left_s - min(now - seen, 2 * TICK_S), now
            if left_s < 0:
                _abort(world)
                return
            world.observe()
            injector.tick()
            time.sleep(TICK_S)
        world.observe()
        injector.tick()  # a fault that has waited for the exit ends with it
        code = world.driver.returncode
        world.violations += check_session(world, code)
        if world.violations or (code in (0, 1) and not world.is_expected(1)):
            return
        if code == 0:  # done, but a fault lasts: drivers that only say so are not counted
            most += 1
    world.violate(f"the search is not done after {most} sessions")


def _abort(world: World) -> None:
    """Let a stuck driver show where it is, and end it."""
    assert world.driver is not None
    world.signal(signal.SIGABRT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        world.driver.wait(ABORT_S)
    said = [line for line in world.said().splitlines() if not line.startswith("Extension modules")]
    tail = "\n    ".join(said[-60:])
    world.violate(f"not done after {ROUND_S[world.plan.launcher]:g} s:\n    {tail}")
