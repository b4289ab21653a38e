"""The driver at scale: ``python -m benchmarks.driver.scale [--repeats 3] [--quick] [--json FILE]``.

Whole searches on a simulated cluster with the real driver, pool, policy and journal, every line
of which is synced to disk as in a real run. Time is virtual, so deciding costs the nodes nothing
here; the share of the search's time that it takes is printed instead.

- **Node time that does useful work**: nodes held by attempts whose end says something about their
  configuration, until no new configuration is started. Attempts that a lost node or a failed
  launch ended do no useful work.
- **What the widths allow**: no schedule can hold more. At any moment the trials side by side are a
  pattern, so many of each width, that fits the usable nodes. The best mixture of patterns that
  gives every width the time its trials took is a linear program; trials may be cut up and the
  future is known to it.
- **The peer** is the same search with nodes leased strictly in the order of the proposals.
- **Driver CPU**: of the thread that decides, without the policy: leases, journal, trial folders,
  ``results.csv``, progress lines. What a launcher does in threads of its own is not in it, but is
  in the wall time, as is everything else that this machine does.

Every search runs in a process of its own; its peak of memory includes Python's libraries and the
simulated cluster itself.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from analysis.run.events import Event
from analysis.run.fold import Run, read_run
from analysis.run.results import ResultsFile
from benchmarks.driver.node_time import node_time
from benchmarks.printing import machine, spread
from benchmarks.search.simulated import simulated_driver
from benchmarks.search.unrecorded import TOLD, at_scale
from search_spaces import SearchSpace, load_space
from workflows.optimizer.policy import Policy, Proposal
from workflows.optimizer.registry import make_policy
from workflows.search import driver as driver_module
from workflows.search.budget import Budget
from workflows.search.driver import Driver
from workflows.search.progress import Progress

REPLAYS = 5
# 12 or 16 nodes as in Dash's search, with more configurations than trials.
LARGE_SPACE = """
version: 1
name: all_of_frontier
model: gpt_175b
cluster: frontier
trainer: {builtin: {data: python-source, precision: fp16}}
parameters:
  num_nodes: [12, 16]
  tp: {log2: [1, 8]}
  pp: [2, 4, 8, 12, 16]
  vpp: [1, 2, 3]
  mbs: {range: [1, 8]}
  gas: [10, 20, 40, 80, 160]
  zero_stage: [0, 1]
  sequence_parallel: [false, true]
  recompute: [full, selective]
objective: {maximize: tflops_per_gpu}
trial: {timeout: 20m, no_progress_timeout: 10m}
"""


@dataclass(frozen=True)
class Scenario:
    """One search; see ``docs/guide/simulate.md`` for the simulated cluster's defaults."""

    title: str
    space: str  # a shipped one's name, or the text of one
    nodes: int
    policy: str
    budget: Budget
    goal: float  # useful node time, share of what the widths allow
    max_concurrent: int = 90


DASH = Scenario(
    "Dash's search: 2 h on 128 nodes, 12 or 16 a trial",
    space="gpt_175b_frontier_table4",
    nodes=128,
    policy="random",
    budget=Budget(wall_time_s=7200),
    goal=0.97,
)
ALL_OF_FRONTIER = Scenario(
    "10,000 trials of 12 or 16 nodes on 9,408 nodes",
    space=LARGE_SPACE,
    nodes=9408,
    policy="random",  # the guided search would take about an hour
    budget=Budget(trials=10_000),
    goal=0.95,
    max_concurrent=1000,
)


class _Timed(Policy):
    """Knows what CPU time a policy took."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.problem)
        self.cpu_s = 0.0
        self._policy = policy

    def propose(self, run: Run, max_nodes: int) -> Proposal | None:
        began = time.thread_time()
        try:
            return self._policy.propose(run, max_nodes)
        finally:
            self.cpu_s += time.thread_time() - began


@dataclass
class _Watch:
    """Listens to a driver: what it shows a person, and how many nodes are usable when."""

    progress: Progress
    usable: list[tuple[float, int]] = field(default_factory=list)  # from when on

    def __call__(self, event: Event | str | None, driver: Driver) -> None:
        self.progress(event, driver)
        if not self.usable or self.usable[-1][1] != driver.pool.size:
            self.usable.append((driver.journal.clock(), driver.pool.size))


def search(scenario: Scenario, seed: int, in_order: bool = False) -> dict[str, float]:
    """One whole search and its figures; in a process of its own.

    Args:
        scenario: what is searched where.
        seed: of the cluster and of the policy.
        in_order: lease nodes strictly in the order of the proposals.
    """
    if in_order:
        driver_module.LOOKAHEAD = 1  # nobody waits behind a trial that waits
    space = _space(scenario.space)
    options = f"nodes={scenario.nodes},max_concurrent={scenario.max_concurrent}"
    policy = _Timed(make_policy(space, seed, scenario.policy))
    with (
        tempfile.TemporaryFile("w") as out,
        simulated_driver(
            space,
            options,
            policy,
            scenario.budget,
            seed,
            watch := _Watch(Progress(Console(file=out))),
            sync=True,
        ) as driver,
    ):
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        driver.run()
        cpu_s, wall_s = time.thread_time() - began_cpu_s, time.perf_counter() - began_s
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        run, folder, trials = driver.state, driver.folder, len(driver.state.trials)
        until = run.opened_t[0] + (scenario.budget.wall_time_s or np.inf)
        return {
            "trials": trials,
            **node_time(run, watch.usable, until, scenario.max_concurrent),
            "busy_share": cpu_s / (run.last_t - run.opened_t[0]),
            "wall_s": wall_s,
            "driver_cpu_ms": 1000 * (cpu_s - policy.cpu_s) / trials,
            "policy_cpu_ms": 1000 * policy.cpu_s / trials,
            "peak_bytes": peak_bytes,
            "journal_bytes": folder.journal_file.stat().st_size,
            "replay_s": _median_s(lambda: read_run(folder.path)),
            "results_s": _median_s(lambda: ResultsFile(folder).write(run)),
        }


def _space(text: str) -> SearchSpace:
    if "\n" not in text:
        return load_space(text)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "space.yaml"
        file.write_text(text)
        return load_space(file)


def _median_s(act: Callable[[], object]) -> float:
    taken_s = []
    for _ in range(REPLAYS):
        began = time.perf_counter()
        act()
        taken_s.append(time.perf_counter() - began)
    return statistics.median(taken_s)


def lines(scenario: Scenario, runs: Sequence[Mapping[str, float]]) -> list[str]:
    """A search's figures, one a row."""

    def of(key: str, unit: str = "", scale: float = 1.0) -> str:
        return spread([run[key] for run in runs], unit, scale)

    rows = [
        ("trials", of("trials"), ""),
        ("virtual hours in which trials were started", of("hours"), ""),
        ("node time that the widths allow", of("allowed_share", " %", 100), ""),
        ("node time that is held", of("held_share", " %", 100), ""),
        ("node time that does useful work", of("useful_share", " %", 100), ""),
        (
            "useful, of what the widths allow",
            of("useful_of_allowed", " %", 100),
            f">= {100 * scenario.goal:g} %",
        ),
        ("driver CPU a trial", of("driver_cpu_ms", " ms"), "<= 30 ms"),
        ("policy CPU per trial", of("policy_cpu_ms", " ms"), ""),
        ("both, of the search's virtual time", of("busy_share", " %", 100), ""),
        ("wall time of the search", of("wall_s", " s"), ""),
        ("peak memory", of("peak_bytes", " GB", 1e-9), ""),
        ("journal", of("journal_bytes", " MB", 1e-6), ""),
        ("replaying the journal", of("replay_s", " s"), "<= 5 s"),
        ("writing results.csv", of("results_s", " s"), ""),
    ]
    return ["| | measured | goal |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]


def measure(act: Callable[[], Any]) -> Any:
    """``act`` in a fresh process, whose peak of memory is its alone."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return pool.apply(act)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.driver.scale", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="seeds of each search")
    parser.add_argument("--quick", action="store_true", help="1,000 trials in place of 10,000")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    large = ALL_OF_FRONTIER
    if arguments.quick:
        large = replace(large, title="quick: 1,000 trials", budget=Budget(trials=1000))
    seeds = range(arguments.repeats)
    print(machine(["median (least-most)"]), flush=True)
    everything: dict[str, Any] = {}
    guided = replace(DASH, title=f"{DASH.title}, guided", policy="meshtune")
    for scenario in (DASH, guided, large):
        timed = scenario.budget.trials is None  # ten thousand trials are repeats enough
        runs = [measure(partial(search, scenario, seed)) for seed in (seeds if timed else [0])]
        print(f"\n## {scenario.title}; policy {scenario.policy}, seeds: {len(runs)}\n")
        print("\n".join(lines(scenario, runs)), flush=True)
        everything[scenario.title] = {"scenario": asdict(scenario), "runs": runs}
        if timed:
            peer = [measure(partial(search, scenario, seed, True)) for seed in seeds]
            of_allowed = spread([run["useful_of_allowed"] for run in peer], " %", 100)
            print(f"\nstrictly in order, useful of what the widths allow: {of_allowed}", flush=True)
            everything[scenario.title]["in_order"] = peer
    cpu_s, peak_bytes = measure(partial(at_scale, "meshtune"))
    everything["guided"] = {"told": TOLD, "cpu_s": cpu_s, "peak_bytes": peak_bytes}
    figures = f"{cpu_s:.2f} s of CPU, {peak_bytes / 1e9:.2f} GB"
    print(f"\na guided proposal after {TOLD} trials (goal 0.5 s, 1 GB): {figures}")
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
