"""The training loop: build a model over the ranks of the process group and run its steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.checkpoint.checkpoints import Checkpoints
from trainer.config import TrainConfig
from trainer.data.batches import Dataset, micro_batches
from trainer.model.precision import COMPUTE_DTYPE, LossScaler
from trainer.model.transformer import Stage
from trainer.optimizer import Optimizer, StepReport, Weights
from trainer.parallel.collectives import Traffic
from trainer.parallel.loss import cross_entropy
from trainer.parallel.mesh import Mesh, build_mesh
from trainer.parallel.pipeline import Pipeline, SingleStage
from trainer.parallel.tensor import parallelize
from trainer.runtime.device import Device
from trainer.runtime.phase import phase
from trainer.zero.buckets import WholeWeights
from trainer.zero.fsdp import ShardedWeights

if TYPE_CHECKING:
    from trainer.deepspeed.engine import DeepSpeedTrainer


def build_stages(config: TrainConfig, mesh: Mesh) -> list[Stage]:
    """This rank's stages, split over tp, without storage (meta device)."""
    num_stages = config.pp * config.vpp
    with torch.device("meta"):
        stages = [
            Stage(config.model, mesh.pp.rank + chunk * config.pp, num_stages, config.recompute)
            for chunk in range(config.vpp)
        ]
        if mesh.tp.size > 1:
            for stage in stages:
                parallelize(stage, mesh, config.sequence_parallel)
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
        self.stages = stages = build_stages(config, self.mesh)
        self.weights = build_weights(config, self.mesh, stages, device.torch)
        self.optimizer = Optimizer(self.weights, config.optimizer, self.mesh, self.scaler)
        self.run: Pipeline | SingleStage
        if config.pp > 1:
            dtype = COMPUTE_DTYPE[config.precision]
            self.run = Pipeline(config, self.mesh, stages, self._loss, dtype, device.torch)
        else:
            self.run = SingleStage(stages[0], self._loss)

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """A micro-batch's part of the step's mean loss, times the loss scale."""
        loss = cross_entropy(logits, targets, self.mesh.tp.group)
        return loss * (self.scaler.scale / self.config.gas)

    def step(self, number: int, dataset: Dataset) -> StepReport:
        """One optimizer step on the global batch of that number; returns its ``StepReport``."""
        scale = self.scaler.scale
        tokens, targets = self._read(number, dataset)
        self.weights.start_step()
        losses = self.run(tokens, targets)
        zero = torch.zeros((), device=self.device.torch)
        return self.optimizer.step(torch.stack(losses).sum() / scale if losses else zero)

    def _read(self, step: int, dataset: Dataset) -> tuple[list[Tensor], list[Tensor]]:
        """This replica's micro-batches; none where only hidden states pass."""
        if not (self.mesh.is_first or self.mesh.is_last):
            return [], []
        dp = self.mesh.dp
        batches = micro_batches(self.config, dataset, step, dp.rank, dp.size)
        tokens, targets = zip(*batches, strict=True)
        device = self.device.torch
        return [t.to(device) for t in tokens], [t.to(device) for t in targets]


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
        step_done: called with every step's number, from 1 in this run, and its time; outside of
            what is timed.

    Returns:
        On every rank: ``step_times_s``, ``losses`` (global mean of each step), ``grad_norms``
        (before clipping), ``skipped_steps``, ``peak_memory_bytes`` and ``communication`` (both this
        rank's; what it sent per measured step, see ``collectives.Traffic.report``; empty with
        DeepSpeed, whose collectives are its own).

    Raises:
        ConfigError: if the configuration cannot run on so many ranks.
    """
    device = Device.of_this_rank(config.device)
    trainer: Trainer | DeepSpeedTrainer
    if config.engine == "deepspeed":
        from trainer.deepspeed.engine import DeepSpeedTrainer  # heavy, and may not be there

        trainer, checkpoints, first = DeepSpeedTrainer(config, device), None, 0
    else:
        trainer, checkpoints = Trainer(config, device), Checkpoints(config)
        first = checkpoints.load(trainer)
    last = first + config.steps
    times, losses, norms, skipped = [], [], [], 0
    dist.barrier()
    for number in range(first, last):
        if number == first + config.warmup_steps and trainer.traffic is not None:
            trainer.traffic.clear()
        begin = time.perf_counter()
        report = trainer.step(number, dataset)
        times.append(device.clock() - begin)
        losses.append(report.loss)
        norms.append(report.grad_norm)
        skipped += not report.done
        progress(
            f"step {number + 1}/{last} loss {report.loss:.4f} "
            f"norm {report.grad_norm:.3f} time {times[-1]:.3f} s"
        )
        step_done(number + 1 - first, times[-1])
        if checkpoints is not None and checkpoints.due(number + 1, last):
            progress(f"saved {checkpoints.save(trainer, number + 1)}")
    sent = trainer.traffic.report(config.measured_steps) if trainer.traffic is not None else {}
    return {
        "step_times_s": times,
        "losses": losses,
        "grad_norms": norms,
        "skipped_steps": skipped,
        "peak_memory_bytes": device.peak_memory_bytes(),
        "communication": sent,
    }
