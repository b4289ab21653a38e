"""AxoNN's scaling on Perlmutter, Frontier and Alps, as the cost model predicts it.

    python -m benchmarks.cost_model.weak_scaling --truth FOLDER

Figures 6 to 9 of Singh et al. 2024 have no numbers; Table III and the text do. For each run of the
table the cost model selects the fastest grid of its space, as the authors measured the ten that
their model ranked first and took the fastest. Prints Markdown: weak scaling next to Table III, with
the breakdown of a step and each difference; the gain of the grid over tensor parallelism within
nodes with hybrid sharding (Figure 7's baseline); and time to solution of the 80B and the 640B model
(Figure 9).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from analysis.prediction.pricing import Pricing
from analysis.prediction.ranking import Ranking
from analysis.sweeps.record import read_csv
from search_spaces import Cluster, load_space
from trainer.plan.flops import hardware_flops

TEMPLATE = Path(__file__).with_name("axonn.yaml")
TABLE = "axonn_sc24_table3.csv"
COMPUTE = ("forward_backward", "recompute", "head", "optimizer", "launch", "fixed")
TOKENS = 2e12
DAYS = 86400.0
FRONTIER_NODE = 8

Space = Mapping[str, Any]


class Best(NamedTuple):
    """The fastest configuration that is predicted to fit."""

    config: Mapping[str, Any]
    step_s: float
    compute_s: float
    tflops: float
    """Rate of a GPU, recomputation included."""
    tokens: float
    """Seconds of a step."""
    exposed: str
    """The largest part other than computing, with its seconds."""


def best(space: Space, keep: Callable[[Mapping[str, Any]], bool] = lambda config: True) -> Best:
    """The fastest configuration of a space among those that ``keep`` accepts."""
    pricing = Pricing(load_space(space))
    ranking = Ranking.of(pricing, 10_000)
    at = next(number for number, config in enumerate(ranking.configs) if keep(config))
    found, jobs = ranking.prediction, ranking.prediction.jobs
    parts = found.time.as_dict()
    step_s = float(found.step_time_s[at])
    batch, gpus = float(jobs.global_batch[at]), float(jobs.layout.world_size[at])
    one = jobs[[at]]
    others = {name: float(of[at]) for name, of in parts.items() if name not in COMPUTE}
    largest = max(others, key=lambda name: others[name])
    flops = float(hardware_flops(one.model, batch, one.recompute_words)[0])
    return Best(
        config=ranking.configs[at],
        step_s=step_s,
        compute_s=float(sum(parts[name][at] for name in COMPUTE)),
        tflops=flops / step_s / gpus / 1e12,
        tokens=batch * float(jobs.model.seq_length[at]),
        exposed=f"{largest} {others[largest]:.1f}",
    )


def grid(config: Mapping[str, Any], gpus: int) -> str:
    """gx, gy, gz and replicas."""
    degrees = [int(config[name]) for name in ("gx", "gy", "gz")]
    replicas = gpus // (degrees[0] * degrees[1] * degrees[2])
    return ", ".join(map(str, [*degrees, replicas]))


def space_of(model: str, system: str, gpus: int) -> Space:
    """The space of one run: a model such as ``80B`` on so many GPUs of a system."""
    cluster = system.lower()
    nodes = gpus // Cluster.named(cluster).gpus_per_node
    space: dict[str, Any] = yaml.safe_load(TEMPLATE.read_text())
    parameters = space["parameters"] | {"num_nodes": nodes}
    if nodes % 3 == 0:
        parameters["gy"] = [1, 2, 3, 4, 6, 8]
    return space | {"model": f"gpt_{model.lower()}", "cluster": cluster, "parameters": parameters}


def weak_scaling(truth: Path) -> None:
    frame = read_csv(truth / TABLE)
    print()
    print(
        "| system | GPUs | model | gx, gy, gz, replicas | step, s | compute, s | exposed, s "
        "| most of it | TFLOP/s of a GPU | published | difference | efficiency | published |"
    )
    print(f"{'|---' * 13}|")
    first: dict[str, tuple[float, float]] = {}
    for _, row in frame.iterrows():
        gpus, published = int(row["n_gpu"]), float(row["tflops_per_gpu"])
        found = best(space_of(row["model"], row["system"], gpus))
        base = first.setdefault(row["system"], (found.tflops, published))
        cells = [row["system"], str(gpus), row["model"], grid(found.config, gpus)]
        cells += [f"{found.step_s:.1f}", f"{found.compute_s:.1f}"]
        cells += [f"{found.step_s - found.compute_s:.1f}", found.exposed, f"{found.tflops:.0f}"]
        cells += [f"{published:.0f}", f"{found.tflops / published - 1:+.0%}"]
        cells += [f"{found.tflops / base[0]:.0%}", f"{published / base[1]:.0%}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def against_baseline(truth: Path) -> None:
    """Figure 7: Megatron's tensor parallelism in nodes with hybrid sharding between them."""
    print("\n| GCDs | model | baseline, s | exposed | best grid, s | exposed | gain |")
    print("|---|---|---|---|---|---|---|")
    frame = read_csv(truth / TABLE)
    rows = frame[frame["system"] == "Frontier"]
    for _, row in rows[rows["n_gpu"].astype(int) <= 8192].iterrows():
        space = space_of(row["model"], row["system"], int(row["n_gpu"]))
        plain = best(space, lambda c: (c["gx"], c["gy"]) == (FRONTIER_NODE, 1))
        found = best(space)
        cells = [row["n_gpu"], row["model"]]
        for one in (plain, found):
            cells += [f"{one.step_s:.1f}", f"{one.step_s - one.compute_s:.1f}"]
        print(f"| {' | '.join(map(str, cells))} | {1 - found.step_s / plain.step_s:.0%} |")


def strong_scaling() -> None:
    """Figure 9: time to train the 80B and the 640B model on Frontier."""
    print("\n| model | GCDs | gx, gy, gz, replicas | step, s | days for 2 T tokens | efficiency |")
    print(f"{'|---' * 6}|")
    for model, sizes in (("80B", (128, 512, 2048, 8192)), ("640B", (512, 2048, 8192))):
        first: float | None = None
        for gcds in sizes:
            space = space_of(model, "Frontier", gcds)
            gas = {"gas": {"log2": [1, 4096]}}
            found = best({**space, "parameters": space["parameters"] | gas})
            days = found.step_s * TOKENS / found.tokens / DAYS
            first = first or days * gcds
            cells = [model, str(gcds), grid(found.config, gcds), f"{found.step_s:.1f}"]
            cells += [f"{days:,.0f}", f"{first / (days * gcds):.0%}"]
            print(f"| {' | '.join(cells)} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--truth", type=Path, required=True, help="folder with published tables")
    truth = parser.parse_args().truth
    weak_scaling(truth)
    against_baseline(truth)
    strong_scaling()
    return 0


if __name__ == "__main__":
    sys.exit(main())
