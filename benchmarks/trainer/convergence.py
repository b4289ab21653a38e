"""Convergence with quantized placements: the same small GPT, only the placement differs.

    python -m benchmarks.trainer.convergence [--steps 1000] [--json FILE] [--plot FILE]
        [--resume FILE]

Trains on the source of Python's standard library with 8 ranks on this machine, seen as 2 nodes of
2 cards with 2 devices each, and compares the loss on held-out files with that of ZeRO-3 without
quantization. First weights, batches and their order are the same in all runs but one: ZeRO-3 with
its batches in another order, which shows what a difference means. Exits 1 if a quantized placement
is off by more than 1 %.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import statistics
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.slow_links.cluster import preload
from benchmarks.slow_links.processes import ProcessError, Processes
from trainer.data.prepare import prepare_data, python_source_files
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError

if TYPE_CHECKING:
    from trainer.data.dataset import TokenDataset
    from trainer.train import Trainer

RANKS, RANKS_PER_NODE, RANKS_PER_PAIR = 8, 4, 2
LIMIT_PERCENT = 1.0
TIMEOUT_S = 4 * 3600.0
HELD_OUT = 10  # one file of so many
LAST_STEPS = 50  # of the training loss that the table gives
VALIDATION_EVERY = 100
VALIDATION_BATCHES, VALIDATION_MBS = 8, 8  # of each rank
MODEL = {"num_layers": 4, "hidden_size": 128, "num_heads": 4, "vocab_size": 264, "seq_length": 128}


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        name: in the table and the figure.
        changes: to the configuration that all runs share.
        data_seed: decides the order of batches; the seed of first weights is the same for all.
        compared: whether the limit is on it.
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    data_seed: int = 1
    compared: bool = True


PRECISION = "fp32"
"""So that quantization is the only difference."""
BASELINE = Run("zero3", {"placement": "zero3"}, compared=False)
REORDERED = Run("zero3, other order", {"placement": "zero3"}, data_seed=2, compared=False)
RUNS = (
    BASELINE,
    Run("zero++", {"placement": "zero++"}),
    Run("zero_topo, secondary 2", {"placement": "zero_topo", "secondary_shard": 2}),
    Run("zero_topo, secondary 8", {"placement": "zero_topo", "secondary_shard": 8}),
    REORDERED,
)
COLORS = ("#1f3a5f", "#8a8f98", "#c8322b", "#3b82c4", "#e0a030", "#6b4f9e", "#2f8f5b")


@dataclass(frozen=True)
class Text:
    """Prefixes of token files made from different source files, and a checksum over both."""

    training: str
    held_out: str
    checksum: int


def settings(run: Run, steps: int, text: Text) -> dict[str, Any]:
    """All that decides a run's losses: the configuration but for the place of the data."""
    config = {
        "model": MODEL,
        "mbs": 1,
        "gas": 1,
        "ranks_per_node": RANKS_PER_NODE,
        "ranks_per_pair": RANKS_PER_PAIR,
        "precision": PRECISION,
        "optimizer": {"lr": 1e-3},
        "device": "cpu",
        "warmup_steps": 0,
        "measured_steps": steps,
        **run.changes,
    }
    return {"config": config, "data_seed": run.data_seed, "text_crc32": text.checksum}


# ---- on every rank ----


class Ordered:
    """A dataset whose order of batches does not depend on the seed of the weights."""

    def __init__(self, dataset: TokenDataset, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed

    def samples(self, first: int, count: int, **shape: int) -> Any:
        return self.dataset.samples(first, count, **{**shape, "seed": self.seed})


def train_rank(what: Mapping[str, Any], text: Text, rank: int, folder: Path) -> int:
    """Train as ``what`` (see ``settings``) says; rank 0 writes ``folder/result.json``."""
    import torch.distributed as dist

    from trainer.data.dataset import TokenDataset
    from trainer.runtime.device import Device
    from trainer.train import Trainer

    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    config = TrainConfig.parse({**what["config"], "data": text.training})
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    training = Trainer(config, Device(config.device, rank % RANKS_PER_NODE, RANKS_PER_NODE))
    dataset = Ordered(TokenDataset(config.data, config.model.vocab_size), what["data_seed"])
    validation = TokenDataset(text.held_out, config.model.vocab_size)
    train_losses: list[float] = []
    validation_losses = {0: validation_loss(training, validation)}
    for number in range(config.steps):
        train_losses.append(training.step(number, dataset).loss)
        done = number + 1
        if done % VALIDATION_EVERY == 0 or done == config.steps:
            validation_losses[done] = validation_loss(training, validation)
            recent = statistics.mean(train_losses[-LAST_STEPS:])
            print(f"step {done}: training {recent:.4f} validation {validation_losses[done]:.4f}")
    if rank == 0:
        result = {"training": train_losses, "validation": validation_losses}
        (folder / "result.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
    return 0


def validation_loss(training: Trainer, dataset: TokenDataset) -> float:
    """Mean loss of the same held-out sequences each time, with weights as passes gather them."""
    import torch
    import torch.distributed as dist

    from trainer.parallel.loss import cross_entropy
    from trainer.parallel.pipeline import GradientAccumulation
    from trainer.runtime.phase import phase

    assert isinstance(training.run, GradientAccumulation)
    phase.name = "forward"
    total = torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        for number in range(VALIDATION_BATCHES):
            first = (number * RANKS + dist.get_rank()) * VALIDATION_MBS
            length = training.config.model.seq_length
            tokens, targets = dataset.samples(first, VALIDATION_MBS, seq_length=length, seed=0)
            total += cross_entropy(training.run.stage(tokens), targets, None).double()
    training.weights.end_evaluation()
    dist.all_reduce(total)
    return float(total) / (RANKS * VALIDATION_BATCHES)


# ---- on this process ----


def train(what: Mapping[str, Any], text: Text, progress: Callable[[str], None]) -> Any:
    """Start the ranks of one run; its losses by step."""
    with tempfile.TemporaryDirectory(prefix="convergence-") as name:
        folder = Path(name)
        tasks = [functools.partial(train_rank, what, text, rank, folder) for rank in range(RANKS)]
        with Processes(tasks, folder, TIMEOUT_S) as ranks:
            for line in ranks.lines():
                progress(line)
            ranks.wait()
        return json.loads((folder / "result.json").read_text())


def prepare(folder: Path) -> Text:
    """The text of ``data: python-source``, some of its files held out."""
    files = python_source_files()
    held_out = files[HELD_OUT // 2 :: HELD_OUT]
    parts = {"training": [f for f in files if f not in set(held_out)], "held_out": held_out}
    checksum = 0
    for name, chosen in parts.items():
        tokens = prepare_data(chosen, folder / name)
        print(f"{name.replace('_', '-')} text: {len(chosen)} files, {tokens} tokens")
        checksum = zlib.crc32((folder / f"{name}.bin").read_bytes(), checksum)
    return Text(str(folder / "training"), str(folder / "held_out"), checksum)


def percent(run: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[int, float]:
    """Excess of a run's validation loss over the baseline's in percent, by step."""
    return {
        int(step): 100 * (loss / baseline["validation"][step] - 1)
        for step, loss in run["validation"].items()
    }


def report(results: Mapping[str, Any], runs: Sequence[Run], steps: int) -> bool:
    """Print the table; returns whether every compared run ends within the limit."""
    print("\nDifferences to zero3 in validation loss: at the end, and as the mean of all")
    print("validations in the second half, where chance averages out.\n")
    print(f"| placement | training loss, last {LAST_STEPS} steps | validation loss ", end="")
    print("| difference at the end (%) | in the second half (%) |\n|---|---|---|---|---|")
    good = True
    for run in RUNS:
        result = results[run.name]
        differences = percent(result, results[BASELINE.name])
        half = statistics.mean(value for step, value in differences.items() if step > steps / 2)
        within = abs(differences[steps]) <= LIMIT_PERCENT or not run.compared
        good &= within
        mean = statistics.mean(result["training"][-LAST_STEPS:])
        note = "" if within else f", more than {LIMIT_PERCENT:g}"
        print(
            f"| {run.name} | {mean:.4f} | {result['validation'][str(steps)]:.4f} "
            f"| {differences[steps]:+.2f}{note} | {half:+.2f} |"
        )
    return good


def plot(results: Mapping[str, Any], runs: Sequence[Run], path: Path) -> None:
    """Loss in training (a running mean) and on held-out text, and its difference to zero3's."""
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for run, color in zip(runs, COLORS, strict=False):
        result, style = results[run.name], "-" if run.compared or run is BASELINE else ":"
        smooth = np.convolve(result["training"], np.full(LAST_STEPS, 1 / LAST_STEPS), "valid")
        steps = range(LAST_STEPS, LAST_STEPS + len(smooth))
        top.plot(steps, smooth, style, color=color, lw=1.2, label=run.name)
        differences = percent(result, results[BASELINE.name])
        validated = [(int(step), loss) for step, loss in result["validation"].items()]
        # Before training the loss is the same for all, and would only stretch the axis.
        top.plot(*zip(*validated[1:], strict=True), "o", color=color, ms=3.5)
        bottom.plot(differences.keys(), differences.values(), f"{style}o", color=color, ms=3.5)
    top.set_ylabel(f"loss, nats per byte\n(line: training, mean of {LAST_STEPS}; dots: validation)")
    top.legend(frameon=False)
    bottom.axhspan(-LIMIT_PERCENT, LIMIT_PERCENT, color="#d7dade", alpha=0.5, lw=0)
    bottom.set_ylabel("validation loss,\ndifference to zero3 (%)")
    bottom.set_xlabel("step")
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def header() -> None:
    """Print machine, versions and what is trained."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    print(f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, ", end="")
    print(f"Python {platform.python_version()}, torch {version('torch')}")
    model = TrainConfig.parse({"model": MODEL, "data": ""}).model
    print(f"{model.num_parameters} parameters, {RANKS} ranks, {PRECISION}")


def main() -> int:
    """Train what the resumed file does not have, then report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--json", type=Path, help="where all losses go, after each run")
    parser.add_argument("--plot", type=Path, help="where the figure goes")
    parser.add_argument("--resume", type=Path, help="a --json file of before; its runs are kept")
    arguments = parser.parse_args()
    if arguments.plot:
        import matplotlib.figure  # noqa: F401 - without it hours of training have no picture
    preload()
    header()
    results: dict[str, Any] = {}
    if arguments.resume and arguments.resume.exists():
        results = json.loads(arguments.resume.read_text())
    with tempfile.TemporaryDirectory(prefix="convergence-") as folder:
        text = prepare(Path(folder))
        for run in RUNS:
            what = settings(run, arguments.steps, text)
            if run.name in results and results[run.name]["settings"] != what:
                parser.error(f"{arguments.resume}: {run.name!r} was run with other settings")
            if run.name not in results:
                losses = train(what, text, functools.partial(print, f"{run.name}:", flush=True))
                results[run.name] = {"settings": what, **losses}
            if arguments.json:
                arguments.json.write_text(json.dumps(results, indent=1))
    good = report(results, RUNS, arguments.steps)
    if arguments.plot:
        plot(results, RUNS, arguments.plot)
    return int(not good)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ConfigError, ProcessError) as error:
        sys.exit(f"convergence: {error}")
