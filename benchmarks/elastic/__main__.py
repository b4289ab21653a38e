"""`train --elastic` through random failures on a private Slurm: what goes on, and what it costs.

    python -m benchmarks.elastic --seeds 3 --interruptions 12 --out FOLDER

Each seed is a training of its own, of the best of one search. After memoryless times, the shorter
the more nodes it is on, one of its nodes is killed, a rank or its driver, or its job is cancelled;
then it goes on with what is left, or in a new job of one to four nodes. Prints for each seed the
largest difference of a loss from a training that nothing disturbs, steps counted twice or missing,
and the share of the time that was training and is kept: measured; by the formula, from what the
training has measured of failures, restarts and checkpoints; and by the formula as each start was
planned, from what was measured until then (without the starts before the first measured restart).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path

from analysis import Pricing, Run, RunFolder, read_run
from analysis.prediction import goodput
from analysis.prediction.goodput import DAY_S
from benchmarks.elastic import virtual
from benchmarks.power_cuts import kill_node, revive_node
from benchmarks.printing import machine
from slurm import processes
from slurm.minicluster import cluster as mini
from slurm.minicluster.config import runtime_folder
from workflows.elastic import useful_share
from workflows.training_plan import as_trials, layouts

NODES, BATCH, SEQ = 4, 24, 64
SPACE = """
version: 1
name: elastic
model: {name: small, num_layers: 4, hidden_size: 64, num_heads: 4, vocab_size: 264, seq_length: SEQ}
cluster: {name: minicluster, gpu: cpu, gpus_per_node: 1, memory_gib: 1, memory_gb_per_s: 10,
          peak_fp32_tflops: 0.05, overlap: 0.02, num_nodes: 4, node_failures_per_day: PER_DAY,
          nic: {count: 1, gb_per_s: 1, latency_us: 500}}
trainer: {env: {OMP_NUM_THREADS: "1"},
          builtin: {data: python-source, precision: fp32, device: cpu, keep_latest_k: 3,
                    optimizer: {lr: 1.0e-4}, metrics: {log_freq: 1},
                    lr_scheduler: {warmup_steps: 100, total_steps: 5000, decay_type: cosine}}}
parameters: {num_nodes: [1, 2, 3, 4], pp: [1, 2, 4], mbs: [1, 2, 3, 4],
             gas: [1, 2, 3, 4, 6, 8, 12], zero_stage: [0, 1, 3]}
constraints: [global_batch_size == BATCH]
objective: {maximize: tokens_per_second}
trial: {warmup_steps: 2, measured_steps: 8, timeout: 300s}
budget: {trials: 4}
finalists: false
"""
FOREVER = 1e12  # tokens
MESHTUNE = [sys.executable, "-m", "workflows.cli.main"]


def wait_for(condition: Callable[[], object], what: str, limit_s: float = 300.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.1)


@dataclass
class Training:
    """One training of a seed, and what was done to it."""

    cluster: mini.Minicluster
    run: Path
    out: Path
    mean_s: float  # between failures of one node
    draw: random.Random
    dead: set[str] = field(default_factory=set)
    done: list[str] = field(default_factory=list)  # interruptions
    struck: int = 0  # the latest start that was interrupted
    job: str = ""
    driver: subprocess.Popen[str] | None = None

    def read(self) -> Run | None:
        with suppress(Exception):
            return read_run(self.out)
        return None

    def nodes(self) -> tuple[str, ...]:
        """Nodes of the start that is on, unless it has been interrupted already."""
        run = self.read()
        latest = max(run.trials, default=0) if run else 0
        attempt = run.trials[latest].running if run and latest > self.struck else None
        return attempt.nodes if attempt else ()

    def begin(self) -> None:
        """Start the driver in a job, a new one if there is none."""
        if not self.job:
            for node in sorted(self.dead):
                revive_node(self.cluster, node)
            self.dead.clear()
            said = subprocess.run(
                ["salloc", f"-N{self.draw.randint(1, NODES)}", "--no-shell", "--exclusive",
                 "--mem=0", "--no-kill", "-t120"],
                capture_output=True, text=True, check=True, timeout=300,
            ).stderr  # fmt: skip
            self.job = re.findall(r"job allocation (\d+)", said)[0]
        argv = [*MESHTUNE, "train", str(self.run), "--elastic", "--tokens", f"{FOREVER:g}",
                "--out", str(self.out), "--launcher", "srun"]  # fmt: skip
        environ = {**os.environ, "SLURM_JOB_ID": self.job}
        with Path(f"{self.out}.log").open("a") as log:
            self.driver = subprocess.Popen(argv, env=environ, stdout=log, stderr=log, text=True)

    def end_job(self) -> None:
        self.cluster.run("scancel", self.job)
        self.job = ""
        wait_for(lambda: not self.cluster.run("squeue", "-h"), "the job is gone")

    def disturb(self) -> str:
        """Interrupt what runs; returns how, or "" if it has no ranks yet."""
        assert self.driver is not None
        how = self.draw.choice(["node", "node", "rank", "rank", "driver", "job"])
        nodes, run = self.nodes(), self.read()
        if not nodes or run is None:
            return ""
        latest = max(run.trials)
        name = run.trials[latest].attempts[-1].name
        ranks = processes.with_environ(
            lambda env: env.get("MESHTUNE_TRIAL") == name and "RANK" in env
        )
        if how == "node":
            node = self.draw.choice(nodes)
            kill_node(self.cluster, node)
            self.dead.add(node)
        elif how == "job":
            self.end_job()
        elif how == "driver":
            self.driver.send_signal(signal.SIGKILL)
        elif ranks:
            processes.send({self.draw.choice(sorted(ranks))}, signal.SIGKILL)
        else:
            return ""
        self.struck = latest
        return how

    def interrupt(self, count: int) -> None:
        """Train through so many interruptions, until the next checkpoint, and stop."""
        self.begin()
        assert self.driver is not None
        while len(self.done) < count:
            left_s, before = self.draw.expovariate(1.0) * self.mean_s, time.monotonic()
            while left_s > 0:  # seconds of one node
                self._alive()
                time.sleep(0.2)
                now = time.monotonic()
                left_s, before = left_s - (now - before) * len(self.nodes()), now
            if how := self.disturb():
                self.done.append(how)
                print(f"#   {self.out.name}: {len(self.done):2d} {how}", flush=True)
        steps = self.saved()
        wait_for(lambda: self._alive() and self.saved() > steps, "it goes on", 600)
        self.driver.send_signal(signal.SIGTERM)
        self.driver.wait(300)
        if self.job:
            self.end_job()

    def _alive(self) -> bool:
        if self.driver is None or self.driver.poll() is not None:
            self._next()
        return True

    def _next(self) -> None:
        """The driver has ended: in the same job if it was killed, else in another one."""
        if (
            self.driver is not None and self.driver.returncode != -signal.SIGKILL and self.job
        ) or len(self.dead) == NODES:
            self.end_job()
        self.begin()

    def saved(self) -> int:
        names = [p.name[5:] for p in (self.out / "checkpoints").glob("step-*")]
        return max((int(name) for name in names if name.isdecimal()), default=0)


def losses(out: Path) -> list[tuple[int, float]]:
    """Step and loss of each line of the metrics."""
    lines = (json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["loss"]) for line in lines]


def told(run: Run, searched: Path) -> float:
    """Share by the formula, from what the whole training has measured, at the intervals it had."""
    starts = [trial for trial in run.trials.values() if trial.ended]
    base = json.loads(run.folder.base_file.read_text())
    space = RunFolder(run.directory).frozen_space()
    space = layouts(space, base, NODES, [start.config for start in starts])
    trials = [*read_run(searched).trials.values(), *as_trials(space, starts)]
    known = Pricing(space).failures.learned(space, trials).observed(starts)
    assert known.seen and known.lost_s is not None
    saves_s = [s.result["checkpoint_s"]["median"] for s in starts if "checkpoint_s" in s.result]
    node_s = sum(len(s.attempts[-1].nodes) * s.result["elapsed_s"] for s in starts)
    shares = []
    for start in starts:
        nodes, expected, result = len(start.attempts[-1].nodes), start.expected, start.result
        steps = max(1, round(expected["checkpoint_interval_s"] / expected["step_time_s"]))
        save_s = result.get("checkpoint_s", {"median": statistics.median(saves_s)})["median"]
        step_s = result.get("step_time_s", {"mean": expected["step_time_s"]})["mean"]
        restart_s = known.lost_s + known.start_up.seconds(nodes)
        mtbf_s = node_s / known.seen / nodes
        shares.append(float(goodput.useful_share(mtbf_s, steps * step_s, save_s, restart_s)))
    share = statistics.fmean(shares, [start.result["elapsed_s"] for start in starts])
    return share * (1 - known.between_share)


def planned(run: Run) -> float:
    """Mean of the shares that were expected at each start, by how long it lasted."""
    starts = [trial for trial in run.trials.values() if trial.ended]
    known = next(n for n, start in enumerate(starts, 1) if "tail_s" in start.result)
    rows = [(start.expected["useful_share"], start.result["elapsed_s"]) for start in starts[known:]]
    return statistics.fmean(*zip(*rows, strict=True))


@contextmanager
def slurm() -> Iterator[mini.Minicluster]:
    directory = runtime_folder() / f"elastic-{os.getpid()}"
    cluster = mini.up(directory, num_nodes=NODES, gpus_per_node=1)
    os.environ["SLURM_CONF"] = str(cluster.conf)
    try:
        yield cluster
    finally:
        mini.down(directory)


def report(training: Training, reference: dict[int, float]) -> list[str]:
    run = read_run(training.out)
    found, saved = losses(training.out), training.saved()
    steps = [step for step, _ in found]
    layouts = {json.dumps(dict(t.config), sort_keys=True) for t in run.trials.values()}
    nodes = {len(t.attempts[-1].nodes) for t in run.trials.values() if t.attempts}
    off = max(abs(loss / reference[step] - 1) for step, loss in found if step in reference)
    record = json.loads((training.out / f"checkpoints/step-{saved:08}/training.json").read_text())
    twice = len(steps) - len(set(steps))
    missing = saved - len([step for step in set(steps) if step <= saved])
    assert record["samples"] == BATCH * saved, record
    measured = useful_share(run, saved)
    assert measured is not None
    kinds = {how: training.done.count(how) for how in ("node", "rank", "driver", "job")}
    return [
        training.out.name, f"{len(training.done)}", ", ".join(f"{n} {h}" for h, n in kinds.items()),
        f"{len(run.trials)}", f"{len(layouts)} on {min(nodes)} to {max(nodes)} nodes", f"{saved:,}",
        f"{twice} twice, {missing} missing", f"{off:.1e}", f"{100 * measured:.1f} %",
        f"{100 * told(run, training.run):.1f} %", f"{100 * planned(run):.1f} %",
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--interruptions", type=int, default=12, help="of each seed")
    parser.add_argument("--mean", type=float, default=120.0, help="seconds between failures of one")
    parser.add_argument("--virtual", action="store_true", help="on a virtual clock")
    parser.add_argument("--out", type=Path, required=True, help="an empty folder")
    given = parser.parse_args()
    out: Path = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    begin_s = time.perf_counter()
    text = SPACE.replace("PER_DAY", f"{DAY_S / given.mean:g}").replace("BATCH", str(BATCH))
    (out / "space.yaml").write_text(text.replace("SEQ", str(SEQ)))
    run, how = out / "run", "simulate" if given.virtual else "local"
    search = [*MESHTUNE, "search", str(out / "space.yaml"), "--run-dir", str(run)]
    subprocess.run([*search, "--launcher", how, "--no-report"], check=True)
    if given.virtual:
        in_virtual_time(run, given.seeds, given.interruptions, given.mean)
    else:
        on_slurm(run, given.seeds, given.interruptions, given.mean)
    print(f"\n{machine([f'{time.perf_counter() - begin_s:.0f} s'])}")
    return 0


def in_virtual_time(run: Path, seeds: int, interruptions: int, mean_s: float) -> None:
    best = read_run(run).best
    assert best is not None
    one_s = best.result["step_time_s"]["median"] * best.config["num_nodes"] ** virtual.SPEED_UP
    print("\n| training | interruptions | useful: measured | by what it measured | planned |")
    print("|---" * 5 + "|")
    for seed in range(seeds):
        out = run.parent / f"virtual-{seed}"
        with Path(f"{out}.log").open("w") as log, redirect_stdout(log), redirect_stderr(log):
            done = virtual.train(run, out, one_s, mean_s, interruptions, random.Random(seed))
        training = read_run(out)
        last = training.trials[max(training.trials)].result["saved"]
        shares = useful_share(training, last), told(training, run), planned(training)
        cells = [out.name, f"{len(done)}", *(f"{100 * (share or 0.0):.1f} %" for share in shares)]
        print(f"| {' | '.join(cells)} |", flush=True)


def on_slurm(run: Path, seeds: int, interruptions: int, mean_s: float) -> None:
    out, trainings = run.parent, list[Training]()
    with slurm() as cluster:
        for seed in range(seeds):
            draw = random.Random(seed)
            training = Training(cluster, run, out / f"seed-{seed}", mean_s, draw)
            training.interrupt(interruptions)
            trainings.append(training)
    most = max(training.saved() for training in trainings)
    whole = out / "undisturbed"
    shutil.rmtree(whole, ignore_errors=True)
    argv = [*MESHTUNE, "train", str(run), "--elastic", "--tokens", str(most * BATCH * SEQ)]
    with Path(f"{whole}.log").open("w") as log:
        subprocess.run([*argv, "--out", str(whole), "--launcher", "local"], check=True, stdout=log)
    reference = dict(losses(whole))
    print(
        "\n| training | interruptions | of them | starts | layouts | steps saved | in the record | "
        "largest relative difference of a loss | useful: measured | by what it measured | planned |"
    )
    print("|---" * 11 + "|")
    for training in trainings:
        print(f"| {' | '.join(report(training, reference))} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
