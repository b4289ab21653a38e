"""Time in which a browser opens the report of a large run; needs Debian's chromium.

    python -m benchmarks.report.opening [--trials 10000] [--repeats 3] [RUN ...]

Headless Chromium opens the page, draws every figure, seen or not, and prints the page as text.
Seconds are of the CPU, all processes together, beyond those of an empty page; ``until drawn`` is
the page's own clock.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from analysis import read_run, write_report
from benchmarks.printing import machine, spread
from benchmarks.report.__main__ import simulated_run

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom")
MARK = "drawn-after-ms"
# Draws what is not seen yet as well, and leaves the page's clock where the text shows it.
WATCH = f"""<script>
document.querySelectorAll("figure[data-draw]").forEach((f) => drawn[f.dataset.draw](f));
document.body.dataset.after = "{MARK} " + performance.now();
</script></body>"""


def opened(page: Path, folder: Path) -> tuple[float, float]:
    """CPU seconds of opening a page, and milliseconds on its clock until all was drawn."""
    command = ["chromium", *FLAGS, f"--user-data-dir={folder / 'profile'}", page.as_uri()]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = re.search(rf"{MARK} ([\d.]+)", done.stdout)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, float(found[1]) if found else float("nan")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report.opening")
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument("--trials", type=int, nargs="+", default=[10_000])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args(argv)
    print(machine(["median (least-most)"]))
    print("\n| trials | page (MB) | CPU (s) | until drawn (s) |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        empty = folder / "empty.html"
        empty.write_text("<!doctype html><title>empty</title>")
        nothing = min(opened(empty, folder)[0] for _ in range(arguments.repeats))
        for run_dir in arguments.runs or (simulated_run(folder, n) for n in arguments.trials):
            text = write_report(run_dir).read_text()
            watched = folder / "watched.html"
            watched.write_text(text.replace("</body>", WATCH))
            times = [opened(watched, folder) for _ in range(arguments.repeats)]
            cpu = spread([cpu_s - nothing for cpu_s, _ in times])
            drawn = spread([ms / 1000 for _, ms in times])
            size = watched.stat().st_size / 1e6
            print(f"| {len(read_run(run_dir).trials)} | {size:.2f} | {cpu} | {drawn} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
