"""Violations that axe-core finds in a report's page, at three widths in both colour schemes.

    npm install axe-core
    python -m benchmarks.report.accessible node_modules/axe-core/axe.min.js [--trials 2000]
        [--pictures DIR] [RUN ...]

Headless Chromium opens the page, draws every figure, and runs all rules of axe-core that have one
answer. A line for each width and scheme; then what is violated, with the first element. The exit
code is 1 if anything is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from analysis import write_report
from benchmarks.printing import machine
from benchmarks.report.__main__ import simulated_run
from tests.support.browser import browser

WIDTHS, SCHEMES = (1440, 768, 400), ("light", "dark")
AUDIT = """
return axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations.map(
    (v) => [v.id, v.impact, v.nodes.length, v.nodes[0].html.slice(0, 200)]));
"""
DRAW = "document.querySelectorAll('figure[data-draw]').forEach((f) => drawn[f.dataset.draw](f))"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report.accessible")
    parser.add_argument("axe", type=Path, metavar="axe.min.js")
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--pictures", type=Path, metavar="DIR")
    arguments = parser.parse_args(argv)
    print(machine([]))
    worst = 0
    with tempfile.TemporaryDirectory() as made, browser(Path(made)) as window:
        for run_dir in arguments.runs or [simulated_run(Path(made), arguments.trials)]:
            page = run_dir / "report" / "index.html"
            window.open(page if page.exists() else write_report(run_dir))
            window.run(arguments.axe.read_text())
            for scheme in SCHEMES:
                window.scheme(scheme)
                for width in WIDTHS:
                    window.width(width)
                    window.run(DRAW)
                    began = time.perf_counter()
                    found = window.run(AUDIT)
                    took_s = time.perf_counter() - began
                    worst = max(worst, len(found))
                    name = f"{run_dir.name}-{width}-{scheme}"
                    print(f"{name}: {len(found)} violated, {took_s:.1f} s", flush=True)
                    for rule, impact, count, html in found:
                        print(f"    {rule} ({impact}), {count} times: {html}")
                    if arguments.pictures:
                        arguments.pictures.mkdir(parents=True, exist_ok=True)
                        (arguments.pictures / f"{name}.png").write_bytes(window.picture())
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
