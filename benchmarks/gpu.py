"""The trainer on one GPU: layers of three sizes, kernels, quantization, and a search.

    python -m benchmarks.gpu [--minutes 25] [--out gpu.md]
    python -m benchmarks.gpu --device cpu        # the same on a CPU with toy shapes, to try it

Every case trains in a process of its own, so that one that runs out of memory costs only itself.
Beside each size stands plain torch: the same layers under autocast, ``torch.compile``, fused AdamW.
The table has the model's FLOPs as a share of the GPU's bf16 peak, the memory at its peak, and what
the cost model predicts for it. The search is ``meshtune search`` on this GPU, with micro-batches
that do not fit: its trials end in real errors of the allocator. What the time no longer allows is
named, not left out in silence.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
import yaml

from analysis.cost.jobs import RECOMPUTE, jobs
from analysis.cost.model import CostModel
from benchmarks.trainer.engine import RandomTokens
from search_spaces.cluster import Cluster
from search_spaces.known import FRAMEWORKS
from trainer.model.initialize import initialize
from trainer.model.transformer import Stage
from trainer.plan.config import TrainConfig
from trainer.plan.flops import model_flops
from trainer.runtime.device import Device, attention_backends
from trainer.train import Trainer

LLAMA = {
    "norm": "rmsnorm", "positions": "rotary", "activation": "swiglu", "linear_bias": False,
    "tied_embeddings": False, "vocab_size": 32768,
}  # fmt: skip
# Layers as in Llama 3.2 1B and 3B and Llama 3.1 8B, so few that their states fit one GPU.
SIZES: dict[str, dict[str, int]] = {
    "1B": {"num_layers": 16, "hidden_size": 2048, "num_heads": 32, "num_kv_heads": 8,
           "ffn_hidden_size": 8192},
    "3B": {"num_layers": 14, "hidden_size": 3072, "num_heads": 24, "num_kv_heads": 8,
           "ffn_hidden_size": 8192},
    "8B": {"num_layers": 8, "hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8,
           "ffn_hidden_size": 14336},
}  # fmt: skip
TOY = {"toy": {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2,
               "ffn_hidden_size": 128}}  # fmt: skip
SEQUENCES = {"cuda": (4096, 8192), "cpu": (64,)}
VARIANTS: dict[str, dict[str, Any]] = {
    "compiled": {"compile": True},
    "eager": {},
    "compiled, selective": {"compile": True, "recompute": "selective"},
    "selective": {"recompute": "selective"},
    "full": {"recompute": "full"},
    "full, every second": {"recompute": "full", "recompute_every": 2},
}
PLAIN = "plain torch, compiled"
TOKENS = {"cuda": 16384, "cpu": 128}  # of a micro-batch
WARMUP_STEPS, MEASURED_STEPS = 3, 8
CASE_S = 240.0
SEARCH_S = 360.0  # kept for the search


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table."""

    size: str
    sequence: int
    variant: str
    device: str

    def config(self) -> TrainConfig:
        """For either trainer."""
        shape = (SIZES | TOY)[self.size]
        return TrainConfig.parse(
            {
                "model": {**LLAMA, **shape, "seq_length": self.sequence},
                "data": "", "device": self.device, "gas": 2,
                "mbs": max(1, TOKENS[self.device] // self.sequence),
                **VARIANTS.get(self.variant, {}),
            }
        )  # fmt: skip


def cases(device: str) -> Iterator[Case]:
    """The cases, most important first: compiled layers beside plain torch."""
    sizes = SIZES if device == "cuda" else TOY
    variants = list(VARIANTS)
    for variant in (variants[0], PLAIN, *variants[1:]):
        for size, sequence in itertools.product(sizes, SEQUENCES[device]):
            yield Case(size, sequence, variant, device)


def measure(case: Case) -> dict[str, Any]:
    """Train a few steps in this process; seconds, loss and bytes."""
    if case.device == "cpu":  # to try the program; code for a CPU takes its compiler a minute
        torch.compile = functools.partial(torch.compile, backend="aot_eager")
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    config, device = case.config(), Device(case.device)
    store = dist.HashStore()
    dist.init_process_group(**device.group_options(), store=store, rank=0, world_size=1)
    tokens = RandomTokens(config.model.vocab_size, config.model.seq_length, samples=64)
    step: Callable[[int], float]
    if case.variant == PLAIN:
        step = plain_step(config, device, tokens)
    else:
        training = Trainer(config, device)
        step = lambda number: training.step(number, tokens).loss  # noqa: E731
    times_s, loss = [], 0.0
    with attention_backends(device.type):
        for number in range(WARMUP_STEPS + MEASURED_STEPS):
            begin_s = device.clock()
            loss = step(number)
            times_s.append(device.clock() - begin_s)
        kernels = slowest_kernels(lambda: step(number + 1)) if device.type == "cuda" else []
    return {
        "seconds": statistics.median(times_s[WARMUP_STEPS:]),
        "loss": loss,
        "kernels": kernels,
        **device.memory(),
    }


def plain_step(config: TrainConfig, device: Device, tokens: RandomTokens) -> Callable[[int], float]:
    """A plain torch step: float32 weights, autocast, a compiled model, fused AdamW."""
    with torch.device(device.torch):
        stage = Stage(config.model)
    initialize(stage, "", config.model, config.seed)
    model: Any = torch.compile(stage)
    adamw = torch.optim.AdamW(stage.parameters(), lr=3e-4, fused=True)

    def loss_of(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(inputs)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.t().reshape(-1))

    def step(number: int) -> float:
        total = 0.0
        for micro_batch in range(config.gas):
            batch = tokens.samples((number * config.gas + micro_batch) * config.mbs, config.mbs)
            loss = loss_of(*(part.to(device.torch) for part in batch)) / config.gas
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(stage.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
        return float(total)

    return step


def slowest_kernels(step: Callable[[], object], count: int = 8) -> list[tuple[str, float]]:
    """Names and milliseconds of what takes most of the device's time in one step."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
    events = sorted(profile.key_averages(), key=lambda event: -event.self_device_time_total)
    return [(event.key, event.self_device_time_total / 1e3) for event in events[:count]]


def predicted_bytes(case: Case, cluster: Cluster) -> float:
    """The cost model's peak memory, of tensors."""
    config = case.config()
    model = config.model
    told = jobs(
        {
            "num_layers": model.num_layers, "hidden_size": model.hidden_size,
            "num_heads": model.num_heads, "kv_heads": model.kv_heads, "ffn_size": model.ffn_size,
            "gated": True, "tied_embeddings": False, "vocab_size": model.vocab_size,
            "seq_length": model.seq_length, "dp": 1, "tp": 1, "pp": 1, "mbs": config.mbs,
            "gas": config.gas, "zero_stage": 0, "sequence_parallel": False,
            "recompute": RECOMPUTE[config.recompute],
        }
    )  # fmt: skip
    return float(CostModel(cluster, FRAMEWORKS["meshtune"]).predict(told).peak_bytes[0])


def this_cluster(device: Device) -> Cluster:
    """The shipped cluster with this GPU, as a node of one; on a CPU the demo's."""
    facts = device.facts()
    if device.type == "cpu":
        return Cluster.shipped()["tiny_cpu"].model_copy(update={"gpus_per_node": 1, "links": []})
    words = str(facts["name"]).replace("NVIDIA", "").split()
    for cluster in Cluster.shipped().values():
        units = cluster.compute_units in (None, facts["compute_units"])
        alike = abs(cluster.memory_bytes / int(facts["memory_bytes"] or 1) - 1) < 0.05
        if units and alike and words and words[0] in cluster.gpu:
            return cluster.model_copy(update={"gpus_per_node": 1, "links": [], "nic": None})
    sys.exit(f"no shipped cluster has {facts['name']}: add its data sheet under search_spaces")


def search(device: Device, cluster: Cluster, folder: Path) -> str:
    """Twelve trials of ``meshtune search`` here; how they ended."""
    on_gpu = device.type == "cuda"
    model = {**LLAMA, **(SIZES["1B"] if on_gpu else TOY["toy"]), "name": "layers"}
    space = {
        "version": 1,
        "model": {**model, "seq_length": SEQUENCES[device.type][0]},
        "cluster": cluster.model_dump(exclude_defaults=True),
        "trainer": {"builtin": {"data": "python-source", "device": device.type}},
        "parameters": {
            "mbs": {"log2": [1, 256 if on_gpu else 4]},
            "recompute": ["none", "selective", "full"],
            "compile": [False, True] if on_gpu else [False],
        },
        "objective": {"maximize": "tokens_per_second"},
        "trial": {"warmup_steps": 2, "measured_steps": 3, "timeout": "120s"},
        "budget": {"trials": 12 if on_gpu else 3, "expected_gain": 0},
    }
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(space, sort_keys=False))
    argv = [sys.executable, "-m", "meshtune", "search", str(path), "--launcher", "local"]
    begin_s = time.monotonic()
    done = subprocess.run(
        [*argv, "--run-dir", str(folder / "run")], capture_output=True, text=True, check=False
    )
    lines = (done.stdout or done.stderr).strip().splitlines()
    return "\n".join([f"{time.monotonic() - begin_s:.0f} s, exit code {done.returncode}", *lines])


def row(case: Case, cluster: Cluster) -> str:
    """Run a case in a process of its own; its line of the table."""
    head = f"| {case.size} | {case.sequence} | {case.variant} |"
    argv = [sys.executable, "-m", "benchmarks.gpu", "--one", json.dumps(dataclasses.asdict(case))]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=CASE_S, check=False)
    except subprocess.TimeoutExpired:
        return f"{head} more than {CASE_S:.0f} s | | | | | |"
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return f"{head} {reason[:80]} | | | | | |"
    found = json.loads(done.stdout.splitlines()[-1])
    config = case.config()
    flops = model_flops(config.model, config.mbs * config.gas) / found["seconds"]
    peak = cluster.peak_bf16_tflops or cluster.peak_fp32_tflops or 1.0
    gib = [found[key] / 2**30 for key in ("allocated", "reserved", "used")]
    own = case.variant != PLAIN and config.recompute_every == 1
    told = f"{predicted_bytes(case, cluster) / 2**30:.2f}" if own else ""
    for name, ms in found["kernels"]:
        print(f"    {ms:9.2f} ms  {name[:90]}")
    return (
        f"{head} {1e3 * found['seconds']:.1f} | {flops / 1e12 / peak:.1%} | {gib[0]:.2f} | "
        f"{gib[1]:.2f} | {gib[2]:.2f} | {told} |"
    )


def main() -> None:
    """Measure, and print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=25.0, help="for everything")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(Case(**json.loads(args.one)))))
        return
    end_s = time.monotonic() + 60 * args.minutes
    device = Device(args.device)
    cluster = this_cluster(device)
    print(f"{device.facts()}, torch {torch.__version__}\n")
    print("| layers | sequence | | step ms | of peak | allocated | reserved | used | predicted |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for case in cases(device.type):
        late = time.monotonic() > end_s - SEARCH_S
        head = f"| {case.size} | {case.sequence} | {case.variant} |"
        print(f"{head} no time left | | | | | |" if late else row(case, cluster), flush=True)
    print("\n## Search\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        print(search(device, cluster, Path(folder)), flush=True)
    print("\n## Quantization\n", flush=True)
    argv = [sys.executable, "-m", "benchmarks.trainer.quantization", "--device", device.type]
    subprocess.run(argv, check=False)


if __name__ == "__main__":
    main()
