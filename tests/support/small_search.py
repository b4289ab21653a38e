"""A small search as a person starts it, of real processes that note that they live."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from analysis.run.fold import read_run
from analysis.run.lines import Lines
from slurm import processes

# A trainer of the user's: notes that it lives, takes a moment, or as long as it is held, prints its
# result.
TRAINER = """
import os, sys, time
tp, mbs, pids = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with open(os.path.join(pids, str(os.getpid())), "w"):
    pass
deadline = time.monotonic() + 0.3
while time.monotonic() < deadline or os.path.exists(pids + ".held"):
    time.sleep(0.02)
if mbs == 8:
    raise MemoryError("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
if os.environ["RANK"] == "0":
    print('MESHTUNE_RESULT {"speed": %f}' % (10 * tp + mbs))
"""
SPACE = """
version: 1
name: kill
cluster: {{name: toy, gpus_per_node: 2, memory_gib: 1, peak_fp32_tflops: 0.1}}
trainer:
  command: [{python}, {trainer}, "{{tp}}", "{{mbs}}", {pids}]
parameters:
  num_nodes: [1, 2]
  tp: [1, 2]
  mbs: {{range: [1, 8]}}
objective: {{maximize: speed}}
trial: {{timeout: 600s, no_progress_timeout: 300s}}
budget: {{trials: 6}}
finalists: false
"""
# Where the policy and the report are not what is tested, they need not be imported.
QUICK = ("--policy", "random", "--no-report")


def write_search(place: Path) -> None:
    """The space, its trainer, and a folder for the numbers of its processes."""
    (place / "pids").mkdir()
    trainer = place / "train.py"
    trainer.write_text(TRAINER)
    space = SPACE.format(python=sys.executable, trainer=trainer, pids=place / "pids")
    (place / "space.yaml").write_text(space)


def search(
    place: Path,
    *more: str,
    program: tuple[str, ...] = ("-m", "workflows.cli.main"),
    options: tuple[str, ...] = QUICK,
) -> list[str]:
    command = [sys.executable, *program, "search", str(place / "space.yaml")]
    return [*command, "--run-dir", str(place / "run"), "--launcher", "local", *options, *more]


def finish(place: Path, options: tuple[str, ...] = QUICK) -> str:
    """Search until nothing is left; what was said."""
    command = search(place, options=options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_accounts(place: Path) -> None:
    """Every trial ended for good once, none is repeated, and no process is left."""
    events = list(Lines(place / "run" / "journal.jsonl"))
    final = Counter(e["trial"] for e in events if e["event"] == "ended" and e["final"])
    assert final == dict.fromkeys(range(1, 7), 1)
    run = read_run(place / "run")
    configs = [json.dumps(t.config, sort_keys=True) for t in run.trials.values()]
    assert len(set(configs)) == 6
    for trial in run.trials.values():
        expected = "oom" if trial.config["mbs"] == 8 else "ok"
        assert (trial.kind, trial.running) == (expected, None)
    assert not living(place)


def living(place: Path) -> list[int]:
    """Ranks that run."""
    pids = (int(path.name) for path in (place / "pids").iterdir())
    return [pid for pid in pids if processes.is_running(pid)]
