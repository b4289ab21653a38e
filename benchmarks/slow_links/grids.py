"""Grids of ranks on slow links: what overlap gains, and how well the fastest grids are foreseen.

    python -m benchmarks.slow_links.grids [--rounds 3] [--rate 100] [--ranks-per-node 2]
        [--only overlap ranking] [--json FILE]

``overlap`` is Figure 5 of Singh et al. 2024 in small: a grid of 4 ranks on 4 nodes trains without
overlap, then with one switch more each time. ``ranking`` is their Figure 2: every grid of 8 ranks
is measured and compared with its rank by their equations 1 to 7 alone, and by the cost model. What
is compared takes turns, round after round. Needs root and iproute2; prints Markdown.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.prediction.pricing import Pricing
from benchmarks.slow_links.cluster import Run, SlowCluster, preload
from search_spaces import load_space
from trainer.data.prepare import prepare_data, python_source_files
from trainer.plan.model import ModelConfig
from trainer.plan.sizes import Matrix, layer_matrices

MODEL = ModelConfig(num_layers=2, hidden_size=256, num_heads=8, vocab_size=264, seq_length=64)
SWITCHES = {
    "OAR": "overlap_all_reduce",
    "ORS": "overlap_reduce_scatter",
    "OAG": "overlap_all_gather",
}
# Of overlap: wider, so that there is about as much computing as communication to hide behind it.
OVERLAP_MODEL = MODEL.model_copy(update={"hidden_size": 512, "seq_length": 128})
OVERLAP_GRID = {"gx": 2, "gz": 2}
RANKS, BATCH, FLOAT32 = 8, 16, 4
_TIMEOUT_S = 300.0
SPACE = """\
version: 1
name: grids
model: {{name: small, {model}}}
cluster:
  {{name: slow, gpus_per_node: {per_node}, num_nodes: {nodes}, memory_gib: 4,
   peak_fp32_tflops: {tflops}, memory_gb_per_s: 5, compute_units: 1,
   links: [{{level: node, gpus: {per_node}, gb_per_s: 1, latency_us: 300}}],
   nic: {{count: 1, gb_per_s: {gb_per_s}, latency_us: 300}}}}
trainer: {{builtin: {{data: python-source, precision: fp32, device: cpu}}}}
parameters:
  num_nodes: {nodes}
  gx: {{log2: [1, 8]}}
  gy: {{log2: [1, 8]}}
  gz: {{log2: [1, 8]}}
  mbs: {{log2: [1, 16]}}
constraints: [global_batch_size == {batch}]
objective: {{maximize: tokens_per_second}}
"""

Grid = tuple[int, int, int, int]
"""gx, gy, gz, replicas."""


def grids() -> list[Grid]:
    """All of ``RANKS`` ranks."""
    sizes = [2**n for n in range(RANKS.bit_length())]
    return [g for g in itertools.product(sizes, repeat=4) if np.prod(g) == RANKS]


def train_config(
    data: Path, grid: Mapping[str, int], mbs: int, model: ModelConfig = MODEL, **more: Any
) -> dict[str, Any]:
    """A ``TrainConfig``; weights and gradients travel in four bytes."""
    return {
        "model": model.model_dump(),
        "data": str(data),
        "precision": "fp32",
        "device": "cpu",
        "mbs": mbs,
        "warmup_steps": 2,
        "measured_steps": 3,
        **grid,
        **more,
    }


def communication_s(grid: Grid, ranks_per_node: int, inter: float, intra: float) -> float:
    """Equations 1 to 7 of Singh et al. 2024: a step's communication, all of it exposed.

    Args:
        grid: in the order of their hierarchy.
        ranks_per_node: Gnode.
        inter: bytes per second between two nodes, for all rings together.
        intra: the same of a ring within a node.
    """
    before = [int(np.prod(grid[:place])) for place in range(4)]
    rates = [
        intra if first * size <= ranks_per_node else inter / min(ranks_per_node, first)
        for first, size in zip(before, grid, strict=True)
    ]
    x, y, z, data = grid
    rows = MODEL.seq_length * BATCH // data
    table = Matrix("table", MODEL.hidden_size, MODEL.vocab_size, True)

    def layer(matrix: Matrix) -> float:
        k, n = matrix.inputs, matrix.outputs
        here, there = (0, 1) if matrix.splits_outputs else (1, 0)
        gx, gy = (x, y) if matrix.splits_outputs else (y, x)
        all_gather = (z - 1) * k * n / (gx * gy * z) / rates[2]
        reduce_scatter = (z - 1) / z * k * n / (gx * gy) / rates[2]
        sum_outputs = 2 * (gy - 1) / gy * rows * n / (z * gx) / rates[there]
        sum_inputs = 2 * (gx - 1) / gx * rows * k / (z * gy) / rates[here]
        replicas = 2 * (data - 1) / data * k * n / (gx * gy * z) / rates[3]
        return all_gather + reduce_scatter + sum_outputs + sum_inputs + replicas

    layers = MODEL.num_layers * sum(layer(matrix) for matrix in layer_matrices(MODEL))
    return FLOAT32 * (layers + layer(table))


def cost_model_s(all_grids: Sequence[Grid], per_node: int, rate: float, tflops: float) -> list:
    """Step times by the cost model, which knows the machine's rates and no measured grid."""
    fields = MODEL.model_dump(
        include={"num_layers", "hidden_size", "num_heads", "vocab_size", "seq_length"}
    )
    text = SPACE.format(
        model=", ".join(f"{name}: {value}" for name, value in fields.items()),
        per_node=per_node,
        nodes=RANKS // per_node,
        tflops=tflops,
        gb_per_s=rate / 8000,
        batch=BATCH,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "space.yaml"
        path.write_text(text)
        pricing = Pricing(load_space(path))
    configs = [
        {"num_nodes": RANKS // per_node, "gx": x, "gy": y, "gz": z, "mbs": BATCH // data}
        for x, y, z, data in all_grids
    ]
    return [float(seconds) for seconds in pricing.predict(configs).step_time_s]


def overlap(data: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Step time and CPU time without overlap, and with ever more switches."""
    stages = [list(SWITCHES)[:count] for count in range(len(SWITCHES) + 1)]
    runs: dict[str, list[Run]] = {" + ".join(on) or "none": [] for on in stages}
    with SlowCluster(4, 1, args.rate, None) as cluster:
        for number in range(args.rounds):
            for on in stages if number % 2 else reversed(stages):
                more = {name: short in on for short, name in SWITCHES.items()}
                config = train_config(data, OVERLAP_GRID, 8, OVERLAP_MODEL, gas=2, **more)
                runs[" + ".join(on) or "none"].append(cluster.train(config, _TIMEOUT_S))
    losses = {name: [run.result["loss"] for run in of] for name, of in runs.items()}
    if any(loss != losses["none"][0] for of in losses.values() for loss in of):
        sys.exit(f"losses differ: {losses}")
    plain = [run.step_time_s for run in runs["none"]]
    print(f"\n4 ranks on 4 nodes, {OVERLAP_GRID}, {args.rate:g} Mbit/s, {args.rounds} rounds\n")
    print("| overlap | step, s (all) | over none | CPU s of a rank |")
    print("|---|---|---|---|")
    found = {}
    for name, of in runs.items():
        times = [run.step_time_s for run in of]
        gains = [a / b for a, b in zip(times, plain, strict=True)]
        cpu_s = statistics.median(run.cpu_s_per_step for run in of)
        listed = ", ".join(f"{time:.2f}" for time in times)
        gain = f"**{statistics.median(gains):.3f}** ({min(gains):.3f}..{max(gains):.3f})"
        print(f"| {name} | {statistics.median(times):.2f} ({listed}) | {gain} | {cpu_s:.2f} |")
        found[name] = {"step_s": times, "cpu_s": [run.cpu_s_per_step for run in of]}
    return found


def ranking(data: Path, args: argparse.Namespace) -> dict[str, Any]:
    """All grids measured, beside their ranks by the equations and by the cost model."""
    every = grids()
    per_node = args.ranks_per_node
    times: dict[Grid, list[float]] = {grid: [] for grid in every}
    cpu_s: list[float] = []
    with SlowCluster(RANKS // per_node, per_node, args.rate, None) as cluster:
        for number in range(args.rounds):
            for grid in every if number % 2 else reversed(every):
                degrees = dict(zip(("gx", "gy", "gz"), grid, strict=False))
                config = train_config(data, degrees, BATCH // grid[3], ranks_per_node=per_node)
                run = cluster.train(config, _TIMEOUT_S)
                times[grid].append(run.step_time_s)
                cpu_s.append(run.cpu_s_per_step)
                print(f"{number} {grid} {run.step_time_s:.2f} s", file=sys.stderr, flush=True)
    return {"grids": compared(times, args), "cpu_s": cpu_s}


def compared(times: Mapping[Grid, Sequence[float]], args: argparse.Namespace) -> list[Any]:
    """Print measured step times beside what the equations and the cost model say of them."""
    every, per_node = [*times], args.ranks_per_node
    measured = [statistics.median(times[grid]) for grid in every]
    inter, intra = args.rate * 1e6 / 8, 1e9
    equations = [communication_s(grid, per_node, inter, intra) for grid in every]
    priced = cost_model_s(every, per_node, args.rate, args.tflops)
    place = {name: np.argsort(np.argsort(of)) + 1 for name, of in
             {"measured": measured, "equations": equations, "model": priced}.items()}  # fmt: skip
    print(f"\n{RANKS} ranks, {per_node} on a node, {args.rate:g} Mbit/s, {args.rounds} rounds\n")
    print(
        "| gx, gy, gz, replicas | step, s (range) | rank | eqs. 1-7, s | rank | model, s | rank |"
    )
    print("|---|---|---|---|---|---|---|")
    for at in np.argsort(measured):
        of = times[every[at]]
        name = ", ".join(map(str, every[at]))
        print(
            f"| {name} | {measured[at]:.2f} ({min(of):.2f}..{max(of):.2f}) "
            f"| {place['measured'][at]} | {equations[at]:.2f} | {place['equations'][at]} "
            f"| {priced[at]:.2f} | {place['model'][at]} |"
        )
    for name in ("equations", "model"):
        among = int(np.sum((place[name] <= 10) & (place["measured"] <= 10)))
        agree = float(np.corrcoef(place[name], place["measured"])[0, 1])
        print(f"\n{name}: {among} of the ten ranked first are among the ten fastest; rank "
              f"correlation {agree:.2f}")  # fmt: skip
    rows = zip(map(str, every), (times[g] for g in every), equations, priced, strict=True)
    return [*rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=100.0, help="Mbit/s of each node's link")
    parser.add_argument("--ranks-per-node", type=int, default=2)
    parser.add_argument("--tflops", type=float, default=0.02, help="of a rank among all, measured")
    parser.add_argument("--only", nargs="+", choices=["overlap", "ranking"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are removed
    preload()
    found: dict[str, Any] = {"load": [os.getloadavg()]}
    with tempfile.TemporaryDirectory(prefix="slow-links-data-") as folder:
        data = Path(folder) / "text"
        prepare_data(python_source_files(1_000_000), data)
        for name, measure in (("overlap", overlap), ("ranking", ranking)):
            if not args.only or name in args.only:
                found[name] = measure(data, args)
                found["load"].append(os.getloadavg())
                if args.json:
                    args.json.write_text(json.dumps(found, indent=1) + "\n")
    print("\nload (1, 5, 15 min), before and after each: " + "; ".join(map(str, found["load"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
