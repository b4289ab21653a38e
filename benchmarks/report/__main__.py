"""The report of large runs: its cost, its size, and what its sample of SHAP values leaves out.

    python -m benchmarks.report [--trials 1000 2000 10000] [--repeats 3] [--full] [RUN ...]

Runs are searched on a simulated Frontier by the random policy, through the real driver, unless
they are given. Each report is written by a fresh process; CPU seconds are those of that process,
its imports among them. ``--full`` compares the mean |SHAP| with that of 300 whole trees over
every trial, which takes minutes.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from scipy.stats import spearmanr

import analysis.report.forests as sampled
import search_spaces
from analysis import NotEnough, load, objective_sensitivity, read_run
from analysis.report.sensitivity import failure_sensitivity
from benchmarks.printing import machine, spread

SPACE = "gpt_22b_frontier"
REPORT = """
import json, resource, sys, time
began = time.perf_counter()
from analysis import write_report
page = write_report(sys.argv[1])
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"wall_s": time.perf_counter() - began, "cpu_s": used.ru_utime + used.ru_stime,
                  "peak_mb": used.ru_maxrss / 1e3, "page_mb": page.stat().st_size / 1e6}))
"""


def simulated_run(folder: Path, trials: int) -> Path:
    """A run of so many simulated trials, however long they would take."""
    import meshtune

    shipped = Path(search_spaces.__file__).with_name(f"{SPACE}.yaml").read_text(encoding="utf-8")
    space = folder / f"{SPACE}.yaml"
    space.write_text(re.sub(r"wall_time: \S+", "wall_time: 1000h", shipped), encoding="utf-8")
    run_dir = folder / str(trials)
    meshtune.search(
        space, launcher="simulate", simulate="nodes=9408", policy="random", trials=trials,
        run_dir=run_dir,
    )  # fmt: skip
    return run_dir


def cost(run_dir: Path) -> dict[str, float]:
    """Cost of one report, in a process of its own."""
    command = [sys.executable, "-c", REPORT, str(run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def agreement(run_dir: Path) -> list[str]:
    """Agreement of the sample with all trials and whole trees: a line for each analysis."""
    frame, lines = load(run_dir), []
    for name, analyse in (("objective", objective_sensitivity), ("failure", failure_sensitivity)):
        try:
            some = analyse(frame)
        except NotEnough as refusal:
            lines.append(f"{name}: {refusal}")
            continue
        whole = {"NUM_TREES": 300, "MAX_LEAVES": None, "EXPLAINED": len(frame), "NUM_REFITS": 1}
        with mock.patch.multiple(sampled, **whole):
            every = analyse(frame).mean_abs
        of = some.mean_abs[every.index]
        lines.append(
            f"{name}: {some.n} of {some.total} trials explained; rank correlation "
            f"{spearmanr(of, every).statistic:.3f}, largest difference "
            f"{(of - every).abs().max() / every.max():.1%} of the largest mean |SHAP|"
        )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument("--trials", type=int, nargs="+", default=[1000, 2000, 10_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args(argv)
    print(machine(["median (least-most)"]))
    print("| trials | CPU (s) | wall (s) | peak memory (MB) | page (MB) |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for run_dir in arguments.runs or (
            simulated_run(Path(folder), trials) for trials in arguments.trials
        ):
            costs = [cost(run_dir) for _ in range(arguments.repeats)]
            cells = [spread([c[key] for c in costs]) for key in costs[0]]
            wall, cpu, peak, page = cells
            trials = len(read_run(run_dir).trials)
            print(f"| {trials} | {cpu} | {wall} | {peak} | {page} |", flush=True)
            if arguments.full:
                print("\n".join(agreement(run_dir)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
