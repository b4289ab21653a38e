"""Files and disks: full, cut, in the way, too few to open."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.chaos.faults import CONTINUE, Course, chosen, fault
from benchmarks.chaos.invariants import events_of, finished, finished_in
from benchmarks.chaos.machines import marked, until
from benchmarks.chaos.plan import Planned
from benchmarks.chaos.world import DISK_FILES, World


@fault(hold_s=(0.5, 3.0), cost_s=4)
def disk_full(world: World, planned: Planned) -> Course:
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


@fault(weight=0.7, hold_s=(0.5, 3.0), cost_s=4)
def no_inodes(world: World, planned: Planned) -> Course:
    """The run's file system has bytes, but takes no further file for seconds."""
    if not os.path.ismount(world.root / "disk"):
        return
    world.disturbed = True
    folder = world.root / "disk" / "files"
    with world.may_exit(1, CONTINUE):
        try:
            with contextlib.suppress(OSError):
                folder.mkdir()
                for number in range(2 * DISK_FILES):
                    (folder / str(number)).touch()
            yield planned.hold_s
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        yield 1.0


def _fill(path: Path) -> None:
    """Take the last byte of the file system."""
    for size in (1 << 20, 4096):
        with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
            while file.write(bytes(size)):
                pass


@fault()
def cut_journal(world: World, planned: Planned) -> Course:
    """kill -9, and the journal is cut at any byte of its last lines."""
    world.disturbed = world.abrupt = True

    def cut() -> None:
        size = world.journal.stat().st_size if world.journal.exists() else 0
        # Steps of Slurm outlive their driver: that they were started must not be forgotten.
        last = world.journal.read_bytes().rstrip(b"\n").rfind(b"\n") + 1 if size else 0
        low = 0 if world.is_local else min(last + 1, size)
        cut_at(world, low + int(planned.pick * (size - low)))

    with world.may_exit(-signal.SIGKILL):
        world.between.append(cut)
        world.signal(signal.SIGKILL)
        yield 0.0


def cut_at(world: World, position: int) -> None:
    """Cut the journal; what has finished by then is what may not be lost from here on."""
    if not position and not world.journal.exists():
        return
    if world.is_local:
        until(lambda: not marked(world.marker), 20)
    os.truncate(world.journal, position)
    world.finished = finished(world.journal)


@fault(cost_s=5)
def damage_journal(world: World, planned: Planned) -> Course:
    """kill -9, and a bit of the journal flips: one line is refused, and left out by a repair."""
    world.disturbed = world.abrupt = True
    with world.may_exit(-signal.SIGKILL):
        world.between.append(lambda: damage_and_repair(world, planned))
        world.signal(signal.SIGKILL)
        yield 0.0


def damage_and_repair(world: World, planned: Planned) -> None:
    """Flip a bit of a line, see it refused, and repair it."""
    lines = world.journal.read_bytes().split(b"\n") if world.journal.exists() else []
    # Steps of Slurm outlive their driver: that they were started must not be forgotten.
    hits = [i for i, line in enumerate(lines[:-1]) if world.is_local or b'"ended"' in line]
    if not hits or (world.is_local and not until(lambda: not marked(world.marker), 20)):
        return
    hit = chosen(hits, planned)
    at = int(planned.pick * 997) % len(lines[hit])
    damaged = bytearray(lines[hit])
    damaged[at] ^= 1 << (at % 3)  # no character becomes an end of line
    world.finished = finished_in(lines[:hit] + lines[hit + 1 : -1])
    event = json.loads(lines[hit])
    folder = f"{event.get('trial', 0):04d}"  # a repair reads there what was proposed
    if event["event"] == "proposed" and not (world.run_dir / "trials" / folder).exists():
        world.finished.pop(event["trial"], None)
    world.damages += 1
    world.journal.write_bytes(b"\n".join([*lines[:hit], bytes(damaged), *lines[hit + 1 :]]))
    code, said = world.ask(*world.command())
    if code != 2 or f":{hit + 1}:" not in said or "meshtune repair" not in said:
        world.violate(f"line {hit + 1} is damaged; the driver ended with {code}: {said[-1000:]}")
    repair = (sys.executable, "-m", "meshtune", "repair", str(world.run_dir))
    code, said = world.ask(*repair)
    if code and "No space left on device" in said:  # which another fault took: made, as it says
        (world.root / "disk" / "filler").unlink(missing_ok=True)
        shutil.rmtree(world.root / "disk" / "files", ignore_errors=True)
        code, said = world.ask(*repair)
    if code == 2 and "move it away" in said and len(lines) == 2:  # its only line is damaged
        world.journal.rename(world.root / "journal.damaged")
    elif code:
        world.violate(f"meshtune repair ended with {code}: {said[-1000:]}")


@fault(hold_s=(1.0, 3.0), interrupts=0)
def results_unwritable(world: World, planned: Planned) -> Course:
    """A folder is where ``results.csv`` should be."""
    path = world.run_dir / "results.csv"
    # A driver that has written its last is not to blame. On the same disk, which may be full.
    aside = world.run_dir.with_name("results.aside")
    if not world.run_dir.is_dir():
        return
    try:
        with contextlib.suppress(OSError):  # the driver has written it again meanwhile
            if path.exists():
                shutil.move(path, aside)
            path.mkdir()
        yield planned.hold_s
    finally:
        if path.is_dir():
            path.rmdir()
        driver = world.driver
        ended = driver is not None and driver.poll() in (0, 1)
        if aside.exists() and not path.exists() and not ended:
            shutil.move(aside, path)
            world.put_back = True  # perhaps after the driver wrote it for the last time
        if not path.exists() and ended:
            code, said = world.ask(*world.command())  # which writes what a finished run lacks
            if not path.exists():
                world.violate(f"a finished run, continued, has no results.csv ({code}): {said}")


@fault(hold_s=(1.0, 8.0), interrupts=0)
def report_unwritable(world: World, planned: Planned) -> Course:
    """A file is where the report's folder should be."""
    path = world.run_dir / "report"
    if not world.run_dir.is_dir() or path.exists():
        return
    try:
        with contextlib.suppress(OSError):  # the disk may be full
            path.write_text("")
        yield planned.hold_s
    finally:
        if path.is_file():
            path.unlink()


@fault(weight=1.5, hold_s=(3.0, 6.0), interrupts=0)
def remove_logs(world: World, planned: Planned) -> Course:
    """The logs of a trial in its steps are removed, moved away or emptied; what follows counts."""
    deadline = time.monotonic() + planned.hold_s
    while not (training := _in_their_steps(world)):
        if time.monotonic() > deadline:
            return
        yield 0.0
    folder = chosen(training, planned)
    for path in (folder / "stdout.log", folder / "stderr.log"):
        with contextlib.suppress(OSError):
            match int(planned.pick * 97) % 3:
                case 0:
                    path.unlink()
                case 1:
                    path.rename(folder / f"{path.name}.1")
                case _:
                    os.truncate(path, 0)


def _in_their_steps(world: World) -> list[Path]:
    """Folders of the running trials that have last reported a step, and no result yet."""
    running: dict[int, bool] = {}
    for event in events_of(world.journal):
        if event["event"] in ("started", "ended"):
            running[event["trial"]] = event["event"] == "started"
    found = [world.run_dir / "trials" / f"{n:04d}" for n, runs in running.items() if runs]
    return [folder for folder in found if _last_line(folder).startswith(b"step ")]


def _last_line(folder: Path) -> bytes:
    """The last whole line of a trial's output; empty if there is none, or no such file."""
    with contextlib.suppress(OSError):
        path = folder / "stdout.log"
        if path.is_file() and path.stat().st_size < 4096:
            return [b"", *path.read_bytes().split(b"\n")[:-1]][-1]
    return b""


@fault(interrupts=0)
def reader_leaves(world: World, planned: Planned) -> Course:
    """``meshtune search ... | head -3``: from the next driver on, and of that one alone."""
    world.head_lines = 1 + int(3 * planned.pick)
    with world.may_exit(CONTINUE, -signal.SIGPIPE):
        yield 0.0


@fault(hold_s=(0.5, 3.0), interrupts=2)
def few_files(world: World, planned: Planned) -> Course:
    """The driver cannot open a further file for seconds."""
    if not (world.driver and world.running):
        return
    world.disturbed = True
    pid = world.driver.pid
    with world.may_exit(1, CONTINUE), contextlib.suppress(ProcessLookupError):
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        try:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (_open_files(pid), before[1]))
            yield planned.hold_s
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@fault(hold_s=(0.3, 2.0), interrupts=2)
def stale_files(world: World, planned: Planned) -> Course:
    """The file server of the run is away for moments: every second call on its files fails."""
    names = ("journal.jsonl", "results.csv", "driver.lock", "trials", ".")
    yield from _failing(world, planned, names, "openat,newfstatat,fsync,write,rename", "ESTALE")


@fault(hold_s=(0.3, 2.0), interrupts=2)
def read_only(world: World, planned: Planned) -> Course:
    """The run's file system is read-only for moments."""
    names = ("journal.jsonl", "results.csv", "trials", ".")
    yield from _failing(world, planned, names, "write,fsync,ftruncate,rename,mkdir", "EROFS")


@fault(hold_s=(2.0, 6.0), interrupts=2)
def no_locks(world: World, planned: Planned) -> Course:
    """kill -9, and the next driver finds that the file server's lock manager is away."""
    killed, world.disturbed, world.abrupt = world.driver, True, True
    with world.may_exit(-signal.SIGKILL):
        world.signal(signal.SIGKILL)
        while world.driver is killed:
            yield 0.0
    yield from _failing(world, planned, ("driver.lock",), "flock", "ENOLCK")


def _failing(
    world: World, planned: Planned, names: Sequence[str], calls: str, error: str
) -> Course:
    """Every second such call of the driver's main thread on these files fails, for a while."""
    if not (world.driver and world.running):
        return
    world.disturbed = True
    command = ["strace", "-qq", "-o", "/dev/null", "-p", str(world.driver.pid)]
    for name in names:
        command += ["-P", os.path.normpath(world.run_dir / name)]
    command += ["-e", f"inject={calls}:error={error}:when=1+2"]
    with world.may_exit(1, 2, CONTINUE):
        tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield planned.hold_s
        finally:
            tracer.terminate()
            tracer.wait()
        yield 1.0  # a driver that has met it may be leaving


def _open_files(pid: int) -> int:
    """The highest that a process has open, and one more."""
    return 1 + max((int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()), default=2)
