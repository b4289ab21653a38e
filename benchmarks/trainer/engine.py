"""Our step time divided by DeepSpeed's and by plain torch's, for ZeRO 0 to 3, on CPU ranks.

    python -m benchmarks.trainer.engine [--pairs 11] [--steps 4] [--zero 0 1 2 3]
        [--precision fp32 bf16]

Each engine trains the same model on the same tokens in ranks of its own. All are alive at once,
and one works at a time while the others wait for a line on a pipe: a round times every engine for
a few steps, in turns that change from round to round, so that what is compared is neighbours in
time. Next to the ratio of times stands that of CPU times, over all ranks, which other work on the
machine disturbs less. Losses are compared as well: an engine that trains something else has no
step time.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import multiprocessing
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.trainer.plain_torch import PlainTrainer
from trainer.deepspeed.engine import DeepSpeedTrainer
from trainer.plan.config import TrainConfig
from trainer.runtime.device import Device
from trainer.train import Trainer

ENGINES = ("ours", "DeepSpeed", "torch")
WARMUP_STEPS = 3
# Later this training is chaotic: noise of 1e-7 in the first weights of plain torch becomes 8e-4.
COMPARED_STEPS = 48
AGREE = {"fp32": 1e-4, "bf16": 1e-2}  # relative difference of the losses, at most
PLAIN = {0: "DDP", 1: "DDP, ZeroRedundancyOptimizer", 2: "FSDP2, kept", 3: "FSDP2, resharded"}
_START_S = 300.0
_fork = multiprocessing.get_context("fork")


class RandomTokens:
    """Random sequences in memory, so that reading costs the same and little."""

    def __init__(self, vocab_size: int, seq_length: int, samples: int = 4096) -> None:
        generator = torch.Generator().manual_seed(1)
        drawn = torch.rand(samples, seq_length + 1, generator=generator)
        self.tokens = drawn.pow(3).mul(vocab_size).long()  # skewed: there is something to learn

    def samples(self, first: int, count: int, **_: int) -> tuple[Tensor, Tensor]:
        """See ``trainer.data.batches.Dataset``."""
        rows = self.tokens[torch.arange(first, first + count) % len(self.tokens)]
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def build(engine: str, config: TrainConfig) -> Callable[[int, RandomTokens], float]:
    """An engine's step: number and data to mean loss."""
    device = Device("cpu", dist.get_rank(), dist.get_world_size())
    if engine == "torch":
        return PlainTrainer(config).step
    trainer = (DeepSpeedTrainer if engine == "DeepSpeed" else Trainer)(config, device)
    return lambda number, dataset: trainer.step(number, dataset).loss


def work(engine: str, config: TrainConfig, rank: int, ranks: int, folder: str, pipe: Connection):
    """One rank: trains as many steps as it is sent, and answers with times and the last loss."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks), OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    log = os.open(f"{folder}/{engine}-{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    store = dist.FileStore(f"{folder}/{engine}-store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    dataset = RandomTokens(config.model.vocab_size, config.model.seq_length)
    step = build(engine, config)
    number, loss = 0, 0.0
    while steps := pipe.recv():
        dist.barrier()
        begin, begin_cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            loss = step(number, dataset)
            number += 1
        dist.barrier()
        pipe.send((time.perf_counter() - begin, time.process_time() - begin_cpu, loss))
    os._exit(0)  # the others may be gone: no goodbyes


class Ranks:
    """An engine's processes."""

    def __init__(self, engine: str, config: TrainConfig, ranks: int, folder: str) -> None:
        self.engine, self.folder = engine, folder
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(ranks):
            ours, theirs = _fork.Pipe()
            process = _fork.Process(target=work, args=(engine, config, rank, ranks, folder, theirs))
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def train(self, steps: int) -> tuple[float, float, float]:
        """Seconds per step, CPU seconds of all ranks per step, and the last loss."""
        for pipe in self.pipes:
            pipe.send(steps)
        answers = []
        for pipe in self.pipes:
            try:
                if not pipe.poll(_START_S):
                    raise EOFError
                answers.append(pipe.recv())
            except (EOFError, ConnectionResetError):
                log = Path(f"{self.folder}/{self.engine}-0.log").read_text()
                sys.exit(f"{self.engine} failed:\n{log[-3000:]}")
        wall_s, cpu_s, losses = zip(*answers, strict=True)
        return max(wall_s) / steps, sum(cpu_s) / steps, losses[0]

    def end(self) -> None:
        """Send them home."""
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            with contextlib.suppress(OSError):
                pipe.send(0)
            process.join(5)
            process.kill()
            process.join()


Times = dict[str, list[float]]


def compare(config: TrainConfig, args: argparse.Namespace) -> tuple[Times, Times]:
    """Seconds and CPU seconds per step of every engine, lists with one entry per round."""
    wall_s: Times = {engine: [] for engine in ENGINES}
    cpu_s: Times = {engine: [] for engine in ENGINES}
    with tempfile.TemporaryDirectory() as folder:
        ranks = {}
        try:
            for engine in ENGINES:
                settings = {"engine": "deepspeed" if engine == "DeepSpeed" else "meshtune"}
                own = config.model_copy(update=settings)
                ranks[engine] = Ranks(engine, own, args.ranks, folder)
                ranks[engine].train(WARMUP_STEPS)
            for number in range(args.pairs):
                turn = number % len(ENGINES)
                order = ENGINES[turn:] + ENGINES[:turn]
                losses = {}
                for engine in order if number % 2 else reversed(order):
                    seconds, cpu_seconds, losses[engine] = ranks[engine].train(args.steps)
                    wall_s[engine].append(seconds)
                    cpu_s[engine].append(cpu_seconds)
                low, high = min(losses.values()), max(losses.values())
                compared = WARMUP_STEPS + (number + 1) * args.steps <= COMPARED_STEPS
                if compared and not high - low <= AGREE[config.precision] * high:
                    sys.exit(f"zero {config.zero_stage} {config.precision}: losses {losses}")
        finally:
            for group in ranks.values():
                group.end()
    return wall_s, cpu_s


def spread(times: Times, engine: str) -> str:
    """Median of the ratios of neighbours, and the quartiles."""
    ratios = [a / b for a, b in zip(times["ours"], times[engine], strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"**{median:.2f}** ({low:.2f}..{high:.2f})"


def machine() -> str:
    """Machine and versions, one line."""
    model = next(
        line.split(":")[1].strip()
        for line in [*Path("/proc/cpuinfo").read_text().splitlines(), f":{platform.machine()}"]
        if line.startswith(("model name", ":"))
    )
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "deepspeed"))
    return (
        f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start; "
        f"Linux {platform.release()}, Python {platform.python_version()}, {versions}"
    )


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=11, help="rounds; at least 2")
    parser.add_argument("--steps", type=int, default=4, help="of each engine in a round")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--zero", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--mbs", type=int, default=2)
    parser.add_argument("--gas", type=int, default=2)
    args = parser.parse_args()
    import_deepspeed()
    model = {
        "num_layers": args.layers,
        "hidden_size": args.hidden,
        "num_heads": max(1, args.hidden // 32),
        "vocab_size": 512,
        "seq_length": args.sequence,
    }
    common: dict[str, Any] = {"data": "", "device": "cpu", "mbs": args.mbs, "gas": args.gas}
    print(machine(), "\n")
    print(f"{args.ranks} ranks, {model}, mbs {args.mbs}, gas {args.gas}; {args.pairs} pairs of")
    print(f"{args.steps} steps; ratios: **median** (quartiles)\n")
    print("| | ours | ours / DeepSpeed | | ours / torch | | torch is |")
    print("|---|---|---|---|---|---|---|")
    print("| | ms | time | CPU | time | CPU | |", flush=True)
    for zero_stage in args.zero:
        for precision in args.precision:
            values = {"model": model, "zero_stage": zero_stage, "precision": precision, **common}
            wall_s, cpu_s = compare(TrainConfig.parse(values), args)
            cells = [
                f"ZeRO-{zero_stage} {precision}",
                f"{1e3 * statistics.median(wall_s['ours']):.0f}",
                *(spread(t, engine) for engine in ENGINES[1:] for t in (wall_s, cpu_s)),
                PLAIN[zero_stage],
            ]
            print(f"| {' | '.join(cells)} |", flush=True)


def import_deepspeed() -> None:
    """Once, for all ranks that fork later."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    with contextlib.redirect_stdout(sys.stderr):
        import deepspeed.runtime.zero.muon.original_muon
        import deepspeed.runtime.zero.stage3  # noqa: F401


if __name__ == "__main__":
    main()
