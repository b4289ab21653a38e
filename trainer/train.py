"""The training loop: build a model over the ranks of the process group and run its steps."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.checkpoint.checkpoints import Checkpoints
from trainer.config import TrainConfig
from trainer.data.batches import Batches, BatchesAhead, Dataset, micro_batches
from trainer.data.goldfish import IGNORED
from trainer.model.kernels import Kernels, TunedKernels, use
from trainer.model.precision import COMPUTE_DTYPE, LossScaler
from trainer.model.transformer import Stage, chosen
from trainer.model.tuning import Tuning
from trainer.optimizer import Optimizer, StepReport, Weights
from trainer.parallel.collectives import Traffic
from trainer.parallel.context import split_sequences
from trainer.parallel.grid import parallelize as grid
from trainer.parallel.grid.depth import Depth
from trainer.parallel.loss import cross_entropy
from trainer.parallel.mesh import Mesh, build_mesh
from trainer.parallel.pipeline import GradientAccumulation, Pipeline
from trainer.parallel.tensor import parallelize
from trainer.parallel.zigzag import held_chunks
from trainer.runtime.device import Device, attention_backends
from trainer.runtime.phase import phase
from trainer.zero.buckets import WholeWeights
from trainer.zero.fsdp import ShardedWeights


class Engine(Protocol):
    """What trains a model on this rank: ``Trainer``, or DeepSpeed's counterpart."""

    @property
    def traffic(self) -> Traffic | None:
        """What this rank sent; None if the engine's collectives are its own."""
        ...

    @property
    def kernels(self) -> dict[str, Any] | None:
        """What its matrix products were found to need; None if they were not timed."""
        ...

    def resume(self) -> int:
        """Load a checkpoint, if one is asked for; returns the steps that are finished."""
        ...

    def step(self, number: int, dataset: Dataset) -> StepReport:
        """One optimizer step on the global batch of that number."""
        ...

    def save_if_due(self, step: int, last: int) -> Path | None:
        """The checkpoint after so many steps of a run that ends with ``last``, if one is due."""
        ...


def build_stages(config: TrainConfig, mesh: Mesh, depth: Depth, kernels: Kernels) -> list[Stage]:
    """This rank's stages, split over tp or the grid and cp, without storage (meta device)."""
    num_stages = config.pp * config.vpp
    with torch.device("meta"):
        stages = [
            Stage(
                config.model,
                mesh.pp.rank + chunk * config.pp,
                num_stages,
                config.recompute,
                config.recompute_every,
                config.compile,
            )
            for chunk in range(config.vpp)
        ]
        opaque = config.compile or config.recompute == "selective"
        for stage in stages:
            if mesh.tp.size > 1:
                parallelize(stage, mesh, config.sequence_parallel, kernels, opaque)
            elif mesh.grid.size > 1:
                grid.parallelize(stage, mesh, depth, kernels, config)
            elif config.tune_kernels:
                use(kernels, stage)
            if mesh.cp.size > 1:
                split_sequences(stage, mesh)
    return stages


def build_weights(
    config: TrainConfig, mesh: Mesh, stages: list[Stage], device: torch.device
) -> Weights:
    """Give the stages their storage and first weights, spread over the replicas as asked."""
    if mesh.placement.fully_sharded:
        return ShardedWeights(stages, mesh, config, device)
    return WholeWeights(stages, mesh, config, device)


class Trainer:
    """A model under training on this rank.

    Args:
        config: what to train and how.
        device: of this rank.

    Raises:
        ConfigError: if the configuration cannot run on so many ranks.
    """

    def __init__(self, config: TrainConfig, device: Device) -> None:
        phase.name = "build"
        self.config = config
        self.device = device
        self.traffic = Traffic(device.clock if config.time_communication else None)
        self.mesh = build_mesh(config, device.type, device.local_world_size, self.traffic)
        self.scaler = LossScaler(config.precision)
        self.depth = Depth(config, self.mesh)
        kernels = TunedKernels() if config.tune_kernels else Kernels()
        self.stages = stages = build_stages(config, self.mesh, self.depth, kernels)
        self.weights = build_weights(config, self.mesh, stages, device.torch)
        self.depth.receive = self.weights.receive
        self.optimizer = Optimizer(self.weights, config.optimizer, self.mesh, self.scaler)
        self.checkpoints = Checkpoints(config)
        self.tuning: Tuning | None = None
        if isinstance(kernels, TunedKernels):
            self.tuning = Tuning(kernels, device, COMPUTE_DTYPE[config.precision])
        self.ahead: BatchesAhead | None = None
        self.ahead_of: Dataset | None = None
        self.run: Pipeline | GradientAccumulation
        if config.pp > 1:
            dtype = COMPUTE_DTYPE[config.precision]
            self.run = Pipeline(config, self.mesh, stages, self._loss, dtype, device.torch)
        else:
            self.run = GradientAccumulation(stages[0], self._loss)

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """A micro-batch's part of the step's mean loss, times the loss scale."""
        loss = cross_entropy(logits, targets, self.mesh.vocabulary.group)
        return loss * (self.scaler.scale / (self.config.gas * self.mesh.grid.z.size))

    def resume(self) -> int:
        """See ``Checkpoints.load``."""
        return self.checkpoints.load(self)

    def save_if_due(self, step: int, last: int) -> Path | None:
        """See ``Checkpoints``."""
        return self.checkpoints.save(self, step) if self.checkpoints.due(step, last) else None

    @property
    def kernels(self) -> dict[str, Any] | None:
        """See ``Engine``."""
        return None if self.tuning is None else self.tuning.report()

    def step(self, number: int, dataset: Dataset) -> StepReport:
        """One optimizer step on the global batch of that number."""
        report = self._step(number, dataset)
        if self.tuning is not None:
            self.tuning.after_step()
        return report

    def _step(self, number: int, dataset: Dataset) -> StepReport:
        scale = self.scaler.scale
        tokens, targets = self._read(number, dataset)
        self.weights.start_step()
        losses = self.run(tokens, targets)
        self.depth.finish()
        zero = torch.zeros((), device=self.device.torch)
        loss = torch.stack(losses).sum() / scale if losses else zero
        if self.config.goldfish is None:
            return self.optimizer.step(loss)
        shares = [(target != IGNORED).float().mean() for target in targets]
        return self.optimizer.step(loss, torch.stack(shares).mean() if shares else zero)

    def _read(self, step: int, dataset: Dataset) -> Batches:
        """This rank's part of its replica's micro-batches; none where only hidden states pass."""
        if not (self.mesh.is_first or self.mesh.is_last):
            return [], []
        device = self.device.torch
        if device.type == "cpu":
            return self._read_on_host(step, dataset)
        if self.ahead is None or self.ahead_of is not dataset:
            read = functools.partial(self._read_on_host, dataset=dataset)
            self.ahead, self.ahead_of = BatchesAhead(read, pinned=True), dataset
        tokens, targets = (
            [t.to(device, non_blocking=True) for t in part] for part in self.ahead.take(step)
        )
        return tokens, targets

    def _read_on_host(self, step: int, dataset: Dataset) -> Batches:
        mesh, z = self.mesh, self.mesh.grid.z
        chunks = held_chunks(self.config.model.seq_length, mesh.cp.rank, mesh.cp.size)
        batches = micro_batches(self.config, dataset, step, mesh.replica, mesh.axes.sizes["dp"])
        tokens, targets = zip(*batches, strict=True)

        def own(whole: Tensor) -> Tensor:
            return chosen(whole.chunk(z.size)[z.rank], chunks, 1)

        return [own(t) for t in tokens], [own(t) for t in targets]


def build_engine(config: TrainConfig, device: Device) -> Engine:
    """The engine that the configuration names."""
    if config.engine == "deepspeed":
        from trainer.deepspeed.engine import DeepSpeedTrainer  # heavy, and may not be there

        return DeepSpeedTrainer(config, device)
    return Trainer(config, device)


def train(
    config: TrainConfig,
    dataset: Dataset,
    progress: Callable[[str], None],
    step_done: Callable[[int, float], None] = lambda number, step_time_s: None,
) -> dict[str, Any]:
    """Train for ``config.steps`` steps on every rank of the default process group.

    The group's backend must be that of ``Device.of_this_rank(config.device)``.

    Args:
        config: what to train and how.
        dataset: gives each replica's micro-batches.
        progress: called with one line after every step.
        step_done: called with every step's number, from 1 in this run, and its time; not timed.

    Returns:
        On every rank: ``step_times_s``, ``losses`` (global mean of each step), ``grad_norms``
        (before clipping), ``skipped_steps``; and this rank's ``device`` (``Device.facts``),
        ``memory`` (``Device.memory``), ``communication`` per measured step
        (``Traffic.report``; empty with DeepSpeed) and ``kernels`` (``Tuning.report``, or None).

    Raises:
        ConfigError: if the configuration cannot run on so many ranks.
    """
    device = Device.of_this_rank(config.device)
    engine = build_engine(config, device)
    first = engine.resume()
    last = first + config.steps
    times_s: list[float] = []
    reports: list[StepReport] = []
    dist.barrier()
    for number in range(first, last):
        if number == first + config.warmup_steps and engine.traffic is not None:
            engine.traffic.clear()
        begin_s = time.perf_counter()
        with attention_backends(device.type):
            report = engine.step(number, dataset)
        times_s.append(device.clock() - begin_s)
        reports.append(report)
        progress(_progress_line(number + 1, last, report, times_s[-1]))
        step_done(number + 1 - first, times_s[-1])
        saved = engine.save_if_due(number + 1, last)
        if saved is not None:
            progress(f"saved {saved}")
    sent = engine.traffic.report(config.measured_steps) if engine.traffic is not None else {}
    return {
        "step_times_s": times_s,
        **_figures(reports),
        "device": device.facts(),
        "memory": device.memory(),
        "communication": sent,
        "kernels": engine.kernels,
    }


def _figures(reports: list[StepReport]) -> dict[str, Any]:
    return {
        "losses": [report.loss for report in reports],
        "grad_norms": [report.grad_norm for report in reports],
        "skipped_steps": sum(not report.done for report in reports),
    }


def _progress_line(step: int, last: int, report: StepReport, time_s: float) -> str:
    return (
        f"step {step}/{last} loss {report.loss:.4f} norm {report.grad_norm:.3f} time {time_s:.3f} s"
    )
