"""Random faults against processes and threads that ask and tell one study.

    python -m benchmarks.chaos --kinds study --rounds 40 --seed 1

Three processes with up to four threads each share a study on a small disk of its own (where it may
be mounted). Meanwhile they are killed, stopped and continued, their clocks jump by days, their disk
is full, and they may open no further file. Whoever is killed is replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from analysis import Trial, read_run
from analysis.run.lock import driver_of
from benchmarks.chaos.file_faults import _fill, _open_files
from benchmarks.chaos.machines import SLOWER
from benchmarks.chaos.study_worker import figure
from benchmarks.chaos.world import CLOCK, ROOT

SPACE = """
version: 1
name: shared
cluster: {name: chaos, gpus_per_node: 2, memory_gib: 1, peak_fp32_tflops: 0.1}
trainer: {command: [train, "{x}"]}
parameters: {num_nodes: [1, 2], x: {range: [1, 20]}}
objective: {maximize: speed}
budget: {trials: 100}
"""
CONFIGURATIONS, WORKERS, ROUND_S = 40, 3, 150.0 * SLOWER


class Shared:
    """One round: a study, its workers, and what is done to them."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root, self.rng = root, rng
        self.run, self.evidence, self.clock = root / "disk/run", root / "evidence", root / "clock"
        for folder in (root / "disk", self.evidence, self.clock):
            folder.mkdir()
        (root / "space.yaml").write_text(SPACE)
        (self.clock / "sitecustomize.py").write_text(CLOCK.format(file=str(self.clock / "offset")))
        self.workers: list[subprocess.Popen[bytes]] = []
        self.killed: set[int] = set()
        self.injected: list[str] = []

    def start(self) -> None:
        """Start one more worker."""
        path = os.pathsep.join([str(self.clock), str(ROOT)])
        module, threads = "benchmarks.chaos.study_worker", str(self.rng.randint(1, 4))
        with (self.root / "said.log").open("ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", module, "space.yaml", self.run, self.evidence, threads],
                cwd=self.root, env=os.environ | {"PYTHONPATH": path}, stdout=log, stderr=log,
            )  # fmt: skip
        self.workers.append(worker)

    @property
    def living(self) -> list[subprocess.Popen[bytes]]:
        return [worker for worker in self.workers if worker.poll() is None]

    def victim(self) -> subprocess.Popen[bytes] | None:
        return self.rng.choice(self.living) if self.living else None

    # ---- faults ----

    def kill(self) -> None:
        if victim := self.victim():
            self.killed.add(victim.pid)
            victim.kill()
            victim.wait()
            self.start()

    def stop(self) -> None:
        if victim := self.victim():
            victim.send_signal(signal.SIGSTOP)
            time.sleep(self.rng.uniform(0.2, 1.5))
            victim.send_signal(signal.SIGCONT)

    def move_clock(self) -> None:
        (self.clock / "offset").write_text(str(86_400 * self.rng.choice([-3, 0, 3])))

    def fill_disk(self) -> None:
        if not os.path.ismount(self.root / "disk"):
            return
        filler = self.root / "disk/filler"
        _fill(filler)
        time.sleep(self.rng.uniform(0.2, 1.5))
        filler.unlink()

    def few_files(self) -> None:
        names = [file for file in self.evidence.iterdir() if not file.suffix]
        opened = {int(file.read_text() or 0) for file in names}  # others are Python, starting
        victims = [worker for worker in self.living if worker.pid in opened]
        with contextlib.suppress(OSError):  # it has ended
            if victims:
                victim = self.rng.choice(victims)
                before = resource.prlimit(victim.pid, resource.RLIMIT_NOFILE)
                few = (_open_files(victim.pid), before[1])
                resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, few)
                time.sleep(self.rng.uniform(0.2, 1.0))
                resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, before)

    FAULTS: tuple[Callable[[Shared], None], ...] = (kill, stop, move_clock, fill_disk, few_files)

    def play(self) -> list[str]:
        """Inject four faults, let the workers finish; returns violations."""
        deadline = time.monotonic() + ROUND_S
        for _ in range(WORKERS):
            self.start()
        while not any(self.evidence.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for fault in self.rng.choices(self.FAULTS, k=4):
            time.sleep(self.rng.uniform(0.0, 1.0))
            self.injected.append(fault.__name__)
            fault(self)
        while time.monotonic() < deadline:
            if not self.living:
                if all(trial.ended for trial in self.trials()):
                    return [*self.violations()]
                self.start()  # the same command resumes
            time.sleep(0.05)
        for worker in self.living:
            worker.kill()
        return [f"not done after {ROUND_S:g} s: {self.said()[-1500:]}"]

    def trials(self) -> list[Trial]:
        return [*read_run(self.run).trials.values()]

    def said(self) -> str:
        return (self.root / "said.log").read_text(errors="replace")

    def violations(self) -> Iterator[str]:
        """A sentence for each invariant that does not hold."""
        trials = self.trials()
        configs = Counter(json.dumps(trial.config) for trial in trials)
        if len(configs) != CONFIGURATIONS or set(configs.values()) != {1}:
            yield f"{len(trials)} trials of {len(configs)} configurations, not {CONFIGURATIONS}"
        for trial in trials:
            if trial.kind != "ok" or trial.objective != figure(dict(trial.config)):
                yield f"trial {trial.number} is {trial.kind} {trial.objective}: {trial.message}"
            for attempt in trial.attempts[:-1]:
                worker = self.evidence / attempt.name.rpartition("-")[2]
                if worker.exists() and int(worker.read_text()) not in self.killed:
                    yield f"{attempt.name} was asked for again while its worker lived"
        lines = [n for file in self.evidence.glob("*.told") for n in file.read_text().split()]
        twice = [number for number, count in Counter(lines).items() if count > 1]
        if twice:
            yield f"told twice: {twice}"
        if not {int(number) for number in lines} <= {trial.number for trial in trials}:
            yield "a trial that was told is lost"
        codes = {w.returncode for w in self.workers if w.pid not in self.killed}
        if codes - {0} or "Traceback" in self.said():
            yield f"workers ended with {sorted(codes)}: {self.said()[-1500:]}"
        if who := driver_of(self.run):
            yield f"the run is held by {who}"
        rows = len((self.run / "results.csv").read_text().splitlines()) - 1
        if rows != len(trials) and "closed:" not in self.said():
            yield f"results.csv has {rows} of {len(trials)} trials"


def play(seed: int, number: int) -> tuple[list[str], list[str], float]:
    """Play a round; returns violations, the faults injected, and its seconds."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-study-") as name:
        (Path(name) / "round").mkdir()
        shared = Shared(Path(name) / "round", random.Random(f"{seed}/{number}/study"))
        disk = str(shared.root / "disk")
        mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "chaos", disk]
        mounted = os.geteuid() == 0 and subprocess.run(mount).returncode == 0
        try:
            violations = shared.play()
        finally:
            for worker in shared.living:
                worker.kill()
                worker.wait()
            if mounted:
                subprocess.run(["umount", "-l", disk], check=True)
    return violations, shared.injected, time.monotonic() - began
