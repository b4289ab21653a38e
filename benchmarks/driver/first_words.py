"""Time until `meshtune search` prints something on a terminal.

    python -m benchmarks.driver.first_words [--repeats 9]

The command runs on a pseudo-terminal of its own, from the start of its interpreter; it is ended
when its panel is there. Prints seconds until the first words and until the panel, of wall time and
of the CPU, and the load that there was.
"""

from __future__ import annotations

import argparse
import os
import pty
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.printing import machine

SPACE = "tiny_cpu"
FIGURES = ("words, wall", "words, CPU", "panel, wall", "panel, CPU")


def first_words(folder: str) -> list[float]:
    """Seconds until the first words and until the panel, of wall time and of the CPU."""
    command = [sys.executable, "-m", "meshtune", "search", SPACE, "--launcher", "simulate"]
    began = time.perf_counter()
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [*command, "--run-dir", folder, "--no-report"])
    found: list[float] = []
    seen = b""
    for words in (b"reading", b"space"):
        while words not in seen:
            seen += os.read(terminal, 4096)
        found += [time.perf_counter() - began, cpu_s(process)]
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    os.close(terminal)
    return found


def cpu_s(process: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.driver.first_words")
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args(argv)
    print(machine([f"{arguments.repeats} repeats, load {os.getloadavg()[0]:.1f}"]))
    with tempfile.TemporaryDirectory() as folder:
        found = [first_words(f"{folder}/{n}") for n in range(arguments.repeats)]
    for name, times in zip(FIGURES, zip(*found, strict=True), strict=True):
        print(f"{name}: {statistics.median(times):.2f} s ({min(times):.2f}-{max(times):.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
