"""One round while it is played: its folders, its driver, and what faults have done to it."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from benchmarks.chaos.machines import SLOWER, Machine, as_in_a_terminal, marked, peak_bytes
from benchmarks.chaos.plan import Plan
from slurm import processes

ROOT = Path(__file__).parents[2]
COMMAND_S = 120.0 * SLOWER
TIMEOUT_S = 90.0 * SLOWER
DISK_BYTES, DISK_FILES = 192 << 20, 2000
LIMIT_BYTES = 4 << 30  # of a driver's data: it fails before the machine does
SPACE = """
version: 1
name: chaos
cluster: {{name: chaos, gpus_per_node: 2, memory_gib: 1, peak_fp32_tflops: 0.1}}
trainer:
  command: [{python}, -m, benchmarks.chaos.trainers, "{{case}}", "{{x}}", {evidence}]
  env: {{CHAOS_SECRET: {secret}}}
  preload: {preload}
parameters:
  num_nodes: [{widths}]
  case: [{cases}]
  x: [{xs}]
objective: {{maximize: speed}}
trial: {{timeout: {timeout_s:g}s, no_progress_timeout: {no_progress_s:g}s, early_stop: false}}
budget: {{trials: {trials}, wall_time: 12h, expected_gain: 0}}
finalists: {finalists}
"""
# The driver's wall clock, moved by so many seconds as a file says: no process but its own sees it.
CLOCK = """
import time
_time = time.time
def _moved():
    try:
        with open({file!r}) as file:
            return _time() + float(file.read())
    except (OSError, ValueError):
        return _time()
time.time = _moved
"""


@dataclass
class World:
    """The search, folder and processes that faults act upon.

    Attributes:
        plan: of the round.
        machine: where it is played.
        root: the round's own folder.
        violations: sentences; empty if all is well.
        disturbed: a fault was there that may end attempts whose configuration is not to blame.
        finished: kind and figure of the trials that had ended for good after the last session.
    """

    plan: Plan
    machine: Machine
    root: Path
    marker: str = field(default_factory=lambda: secrets.token_hex(8))
    secret: str = field(default_factory=lambda: f"s3cret-{secrets.token_hex(8)}")
    violations: list[str] = field(default_factory=list)
    disturbed: bool = False
    put_back: bool = False  # a results.csv that may lack what the driver wrote last
    lists_for_ever: bool = False  # Slurm may list steps of which nothing is left
    asked_to_stop: bool = False  # the present session's driver was, by a signal
    abrupt: bool = False  # the present session's driver was killed: its trials may outlive it
    between: list[Callable[[], None]] = field(default_factory=list)  # before the next driver
    driver: subprocess.Popen[bytes] | None = None
    sessions: int = 0
    peak_bytes: int = 0  # of a driver's memory
    head_lines: int = 0  # that the next driver's reader takes; 0: all
    damages: int = 0  # that the journal had, until they were repaired
    finished: dict[int, tuple[str, float | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._codes: set[int] = set()
        self._lasting: list[tuple[int, ...]] = []
        self._lines, self._offset, self._lines_before = 0, 0, 0

    @property
    def run_dir(self) -> Path:
        return self.root / "disk" / "run"

    @property
    def journal(self) -> Path:
        return self.run_dir / "journal.jsonl"

    @property
    def log(self) -> Path:
        """All that drivers have said."""
        return self.root / "driver.log"

    @property
    def other_log(self) -> Path:
        """The log of all processes that faults have started."""
        return self.root / "other.log"

    def others_said(self) -> str:
        return self.other_log.read_text(errors="replace")[-2000:]

    @property
    def clock_file(self) -> Path:
        return self.root / "clock" / "offset"

    # ---- the round ----

    def __enter__(self) -> World:
        for name in ("disk", "evidence", "clock", "bin"):
            (self.root / name).mkdir(parents=True)
        if any(f.fault in ("disk_full", "no_inodes") for f in self.plan.faults):
            self._mount()
        text = SPACE.format(
            python=sys.executable,
            evidence=self.root / "evidence",
            secret=self.secret,
            preload="[benchmarks.chaos.rank]" if self.plan.shared else "[]",
            widths=", ".join(map(str, self.plan.widths)),
            cases=", ".join(self.plan.cases),
            xs=", ".join(map(str, self.plan.xs)),
            trials=self.plan.trials,
            timeout_s=TIMEOUT_S,
            no_progress_s=self.machine.no_progress_s * SLOWER,
            finalists=f"{{max_repeats: {self.plan.repeats}}}" if self.plan.repeats else "false",
        )
        (self.root / "space.yaml").write_text(text)
        clock = CLOCK.format(file=str(self.clock_file))
        (self.root / "clock" / "sitecustomize.py").write_text(clock)
        return self

    def __exit__(self, *_: object) -> None:
        processes.end_all(lambda: marked(self.marker, others=True))
        if self.driver:
            self.driver.wait()
        if self.violations and self.journal.exists():
            shutil.copy(self.journal, self.root)  # a disk of its own goes with its mount
        if os.path.ismount(self.root / "disk"):
            subprocess.run(["umount", "-l", str(self.root / "disk")], check=True)

    def remove(self) -> None:
        """Remove the round's folder."""
        shutil.rmtree(self.root, ignore_errors=True)

    def _mount(self) -> None:
        disk = str(self.root / "disk")
        size = f"size={DISK_BYTES},nr_inodes={DISK_FILES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "chaos", disk], check=True)

    @property
    def is_local(self) -> bool:
        """Whether trials are processes of this machine, which do not outlive their driver."""
        return self.machine.launcher != "srun"

    def ask(self, *command: str) -> tuple[int, str]:
        """Run a command to its end; returns its exit code and output."""
        done = subprocess.run(
            command, env=self.environment(), cwd=self.root, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_S,
        )  # fmt: skip
        return done.returncode, done.stdout

    # ---- the driver ----

    @property
    def running(self) -> bool:
        return self.driver is not None and self.driver.poll() is None

    def command(self, run_dir: Path | None = None) -> list[str]:
        return [
            *(sys.executable, "-m", "meshtune", "search", str(self.root / "space.yaml")),
            *("--run-dir", str(run_dir or self.run_dir), "--launcher", self.machine.launcher),
            *("--policy", self.plan.policy, "--seed", str(self.plan.seed)),
            *(() if self.plan.report else ("--no-report",)),
            *self.machine.arguments(),
        ]

    def plans(self, fault: str) -> bool:
        """Whether the round has this fault."""
        return any(planned.fault == fault for planned in self.plan.faults)

    def environment(self, whose: str = "") -> dict[str, str]:
        """A driver's environment; all of its processes inherit the round's marker."""
        path = [str(ROOT)]
        if self.plans("set_clock"):
            path.insert(0, str(self.clock_file.parent))
        return {
            **os.environ,
            **self.machine.environment(),
            "CHAOS_ROUND": self.marker + whose,
            "PATH": f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]).rstrip(":"),
            "PYTHONFAULTHANDLER": "1",  # SIGABRT then shows where a stuck driver is
            "PYTHONUNBUFFERED": "1",
        }

    def start_driver(self) -> None:
        for act in self.between:
            act()
        self.between.clear()
        self.machine.renew()
        self.sessions += 1
        self._lines_before = self._lines
        self.abrupt = self.asked_to_stop = False
        self._codes = {0}.union(*self._lasting)
        with self.log.open("ab") as log:
            log.write(f"---- session {self.sessions}\n".encode())
            log.flush()
            with self._screen(log) as screen:
                self.driver = subprocess.Popen(
                    self.command(),
                    env=self.environment(),
                    cwd=self.root,
                    stdin=subprocess.DEVNULL,
                    stdout=screen,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=as_in_a_terminal,
                )
        limit = (LIMIT_BYTES, LIMIT_BYTES)
        resource.prlimit(self.driver.pid, resource.RLIMIT_DATA, limit)

    @contextlib.contextmanager
    def _screen(self, log: IO[bytes]) -> Iterator[IO[bytes]]:
        """The driver's output: the log, or ``head`` in front of it."""
        if not self.head_lines:
            yield log
            return
        head = subprocess.Popen(
            ["head", f"-{self.head_lines}"], stdin=subprocess.PIPE, stdout=log,
            env=os.environ | {"CHAOS_ROUND": f"{self.marker}other"},
        )  # fmt: skip
        self.head_lines = 0
        assert head.stdin is not None
        with head.stdin as pipe:
            yield pipe

    def signal(self, number: int) -> None:
        """Send the driver a signal, if it is there."""
        if self.driver and self.running:
            self.driver.send_signal(number)

    @contextlib.contextmanager
    def may_exit(self, *codes: int) -> Iterator[None]:
        """While it is open a driver may exit so, and the present one also later."""
        self._codes.update(codes)
        self._lasting.append(codes)
        try:
            yield
        finally:
            self._lasting.remove(codes)

    def is_expected(self, code: int) -> bool:
        return code in self._codes

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    # ---- what is seen ----

    def observe(self) -> None:
        """Note what has become of the journal and of the driver's memory."""
        with contextlib.suppress(OSError):
            size = self.journal.stat().st_size
            self._offset = min(self._offset, size)
            with self.journal.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
            self._offset += len(new)
            self._lines += new.count(b"\n")
        if self.driver:
            self.peak_bytes = max(self.peak_bytes, peak_bytes(self.driver.pid))

    @property
    def lines(self) -> int:
        """Number of lines that were ever added to the journal."""
        return self._lines

    @property
    def opened(self) -> bool:
        """Whether the present driver has written something."""
        return self._lines > self._lines_before

    def violate(self, sentence: str) -> None:
        self.violations.append(sentence)
