"""Cost of the search itself: CPU seconds and memory of the driver, per trial.

    python -m benchmarks.driver [--trials 40] [--repeats 3] [--json FILE]

Both sides search the same space with trials that only print a number, so all that is measured is
the driver: proposals, leases, processes, journal. The peer is DeepHyper's own ``CBO.search`` with
its thread evaluator, which starts the same command with ``subprocess.run``; it has no journal,
timeouts or leases. Each repeat is a fresh process; figures are of that process alone, without
the trials' and without the report.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

SPACE = """
version: 1
name: driver_benchmark
cluster: {{name: none, gpus_per_node: 1, memory_gib: 1, peak_fp32_tflops: 0.1}}
trainer:
  command: [/bin/echo, 'MESHTUNE_RESULT {{"speed": {{mbs}}}}']
parameters:
  num_nodes: [1, 2]
  tp: [1, 2, 4, 8]
  pp: [1, 2, 4, 8]
  mbs: {{range: [1, 20]}}
  gas: [1, 2, 4, 8]
  zero_stage: [0, 1, 2, 3]
allow: [tp_across_nodes]
objective: {{maximize: speed}}
trial: {{timeout: 60s}}
budget: {{trials: {trials}}}
"""
MESHTUNE = """
import json, resource, sys, time
from workflows.cli import main as cli
from workflows.search import session  # its imports are not measured
begin = time.monotonic()
options = ["--run-dir", sys.argv[2], "--launcher", "local", "--no-report"]
code = cli.main(["search", sys.argv[1], *options])
wall_s = time.monotonic() - begin
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"code": code, "wall_s": wall_s, "cpu_s": used.ru_utime + used.ru_stime,
                  "peak_mib": used.ru_maxrss / 1024}))
"""
DEEPHYPER = """
import json, resource, subprocess, sys, time, warnings
warnings.filterwarnings("ignore")
from deephyper.evaluator import Evaluator
from deephyper.hpo import CBO, HpProblem
def run(job):
    out = subprocess.run(["/bin/echo", str(job["mbs"])], capture_output=True, text=True)
    return float(out.stdout)
problem = HpProblem()
for name, values in json.loads(sys.argv[2]).items():
    problem.add(values, name)
begin = time.monotonic()
evaluator = Evaluator.create(run, method="thread", method_kwargs={"num_workers": 2})
CBO(problem, random_state=0, log_dir=sys.argv[3]).search(evaluator, max_evals=int(sys.argv[1]))
wall_s = time.monotonic() - begin
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"code": 0, "wall_s": wall_s, "cpu_s": used.ru_utime + used.ru_stime,
                  "peak_mib": used.ru_maxrss / 1024}))
"""
PARAMETERS = {
    "num_nodes": [1, 2],
    "tp": [1, 2, 4, 8],
    "pp": [1, 2, 4, 8],
    "mbs": list(range(1, 21)),
    "gas": [1, 2, 4, 8],
    "zero_stage": [0, 1, 2, 3],
}


def measure(side: str, trials: int) -> dict[str, float]:
    """One fresh process of ``side``; wall and CPU seconds, and peak MiB."""
    with tempfile.TemporaryDirectory() as folder:
        if side == "meshtune":
            space = Path(folder) / "space.yaml"
            space.write_text(SPACE.format(trials=trials))
            arguments = [MESHTUNE, str(space), str(Path(folder) / "run")]
        else:
            arguments = [DEEPHYPER, str(trials), json.dumps(PARAMETERS), folder]
        done = subprocess.run(
            [sys.executable, "-c", *arguments], capture_output=True, text=True, timeout=900
        )
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if figures.pop("code"):
        raise SystemExit(f"{side} failed:\n{done.stdout}\n{done.stderr}")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, ")
    print(f"deephyper {version('deephyper')}, {arguments.trials} trials, two at a time")
    sides: dict[str, list[dict[str, float]]] = {"meshtune": [], "deephyper": []}
    for _ in range(arguments.repeats):  # in turn, so that a drift of the machine hits both
        for side, runs in sides.items():
            runs.append(measure(side, arguments.trials))
    print(f"{'':12s}{'wall s':>22s}{'CPU s':>22s}{'CPU ms a trial':>16s}{'peak MiB':>12s}")
    for side, runs in sides.items():
        columns = {key: [run[key] for run in runs] for key in runs[0]}
        cpu_ms = 1000 * statistics.median(columns["cpu_s"]) / arguments.trials
        print(
            f"{side:12s}{_spread(columns['wall_s']):>22s}{_spread(columns['cpu_s']):>22s}"
            f"{cpu_ms:16.0f}{statistics.median(columns['peak_mib']):12.0f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(sides, indent=1))


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    main()
