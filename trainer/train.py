"""The trainer of one rank: puts model, parallelism and optimizer together, and runs steps."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint.checkpoints import Checkpoints, on_first
from trainer.checkpoint.chunks import chunks
from trainer.checkpoint.folders import complete
from trainer.data.batches import Batches, BatchesAhead, Consumed, Dataset, micro_batches
from trainer.data.goldfish import IGNORED
from trainer.huggingface.weights import Weights as HuggingFaceWeights, export
from trainer.model.deferred import DeferredKernels
from trainer.model.kernels import Kernels, TunedKernels
from trainer.model.offload import Offload
from trainer.model.precision import COMPUTE_DTYPE, LossScaler
from trainer.model.transformer import LayerOptions, Stage, chosen
from trainer.model.tuning import Tuning
from trainer.optimizer import Optimizer, StepReport, Weights
from trainer.parallel.collectives import Traffic
from trainer.parallel.context import split_sequences
from trainer.parallel.experts import Balance, deal_out_experts
from trainer.parallel.grid import parallelize as grid
from trainer.parallel.grid.depth import Depth
from trainer.parallel.loss import chunk_loss, cross_entropy
from trainer.parallel.mesh import Mesh, build_mesh
from trainer.parallel.pipeline import GradientAccumulation, Pipeline
from trainer.parallel.tensor import compute_by, parallelize
from trainer.plan.axes.cp import held_chunks
from trainer.plan.config import TrainConfig
from trainer.plan.sections import Documents
from trainer.runtime.device import Device
from trainer.runtime.phase import phase
from trainer.zero.buckets import WholeWeights
from trainer.zero.fsdp import ShardedWeights


def build_stages(
    config: TrainConfig, mesh: Mesh, depth: Depth, kernels: Kernels, device: Device
) -> list[Stage]:
    """This rank's stages, split over tp or the grid and cp, without storage (meta device)."""
    options, num_stages = _layer_options(config, mesh, device), config.pp * config.vpp
    with torch.device("meta"):
        stages = [
            Stage(config.model, index, num_stages, options, config.stages.layers(index))
            for index in config.stages.of_rank(mesh.pp.rank)
        ]
        for stage in stages:
            if mesh.tp.size > 1:
                parallelize(stage, mesh, config, kernels)
            elif mesh.grid.size > 1:
                grid.parallelize(stage, mesh, depth, kernels, config)
            elif kernels.own_gradients:
                compute_by(kernels, stage, config.compile)
            if mesh.cp.size > 1:
                split_sequences(stage, mesh, config.compile)
            deal_out_experts(stage, mesh)
            if config.chunked_loss and stage.head is not None:
                chunk_loss(stage.head, mesh.tp.group, config.sequence_parallel)
    return stages


def _layer_options(config: TrainConfig, mesh: Mesh, device: Device) -> LayerOptions:
    """Options of layers: what the job asks for, and what the device has kernels for."""
    attention_only = config.recompute == "selective" and not config.keeps_products
    documents, masks = config.documents or Documents(), _masks_documents(config, device)
    dtype, windowed = COMPUTE_DTYPE[config.precision], config.model.windowed_layers > 0
    grouped = device.has_grouped_attention(dtype, config.model.head_dim, masks or windowed)
    return LayerOptions(
        "attention" if attention_only else config.recompute,
        config.recompute_every,
        config.compile,
        documents.reset_attention_mask,
        documents.reset_position_ids,
        masks_documents=masks,
        repeats_keys=mesh.cp.size == 1 and not grouped,
        chunks=held_chunks(config.model.seq_length, mesh.cp.rank, mesh.cp.size),
        chunked_loss=config.chunked_loss,
        offload=Offload(device.torch) if config.offload_activations else None,
    )


def _masks_documents(config: TrainConfig, device: Device) -> bool:
    """Whether a mask separates documents, since no kernel takes packed ones.

    On a CPU a loop over documents takes the kernel's place, but cannot be compiled.
    """
    if config.documents is None or not config.documents.reset_attention_mask:
        return False
    latent = config.model.latent
    head = latent.key_size + latent.rotary_size if latent else config.model.head_dim
    return not device.has_packed_attention(COMPUTE_DTYPE[config.precision], head, config.compile)


class Trainer:
    """Trains a model on this rank; raises ConfigError if it cannot run on so many ranks."""

    def __init__(self, config: TrainConfig, device: Device) -> None:
        phase.name = "build"
        self.config = config
        self.device = device
        self.traffic = Traffic(device.clock if config.time_communication else None)
        self.mesh = build_mesh(config, device.torch, device.local_world_size, self.traffic)
        if config.async_tp and self.mesh.tp.group is not None:
            tokens = config.mbs * config.model.seq_length // (config.tp * config.cp)
            row_bytes = config.model.hidden_size * config.format.bits // 8
            self.mesh.tp.group.fuse(tokens, row_bytes)
        self.scaler = LossScaler(config.precision)
        self.depth = Depth(config, self.mesh)
        kernels = TunedKernels() if config.tune_kernels else Kernels()
        deferred = DeferredKernels(kernels) if config.defers_weight_gradients else None
        self.stages = stages = build_stages(
            config, self.mesh, self.depth, deferred or kernels, device
        )
        placed = ShardedWeights if self.mesh.placement.fully_sharded else WholeWeights
        self.weights: Weights = placed(stages, self.mesh, config)
        self.depth.receive = self.weights.receive
        if deferred is not None:
            deferred.take_over(stages, self.weights.receive)
        self.optimizer = Optimizer(self.weights, config.optimizer, self.mesh, self.scaler)
        self.balance = Balance(stages, self.mesh, config, lambda: self.scaler.scale)
        self.checkpoints = Checkpoints(config)
        self.tuning: Tuning | None = None
        if isinstance(kernels, TunedKernels):
            self.tuning = Tuning(kernels, device, COMPUTE_DTYPE[config.precision])
        self.global_batch = config.mbs * config.gas * self.mesh.axes.sizes["dp"]
        self.consumed = Consumed()
        self.ahead: BatchesAhead | None = None
        self.ahead_of: Dataset | None = None
        self.run: Pipeline | GradientAccumulation
        if config.pp > 1:
            self.run = Pipeline(config, self.mesh, stages, self._loss, deferred)
        else:
            self.run = GradientAccumulation(stages[0], self._loss)

    def _loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """A micro-batch's part of the step's mean loss, times the loss scale."""
        whole, group = not self.config.chunked_loss, self.mesh.vocabulary.group
        loss = cross_entropy(output, targets, group) if whole else output
        return loss * (self.scaler.scale / (self.config.gas * self.mesh.grid.z.size))

    def resume(self) -> int:
        """Load the latest checkpoint, or else any initial weights; returns finished steps."""
        finished = self.checkpoints.load(self)
        path = self.config.initial_load_path
        if finished == 0 and path is not None:
            held = chunks(self.stages, self.optimizer, self.mesh)
            HuggingFaceWeights(Path(path), self.config.model).fill(held)
            self.weights.publish()
        return finished

    def save_if_due(self, step: int, last: int) -> Path | None:
        """Save a checkpoint after ``step`` steps if one is due; the run ends after ``last``."""
        interval = self.config.save_interval
        due = step == last or (interval is not None and step % interval == 0)
        return self.checkpoints.save(self, step) if due and self.config.save else None

    @property
    def kernels(self) -> dict[str, Any] | None:
        """Report of the tuned matrix products; None if they were not timed."""
        return None if self.tuning is None else self.tuning.report()

    def finish(self, stopped: bool = False) -> None:
        """Wait until everything is written; raises what writing raised.

        A run that ``stopped`` early exports nothing: it may be killed soon, or has diverged.
        """
        self.weights.wait()
        if self.device.type == "cuda":  # the last collective must end before its group
            torch.cuda.synchronize(self.device.torch)
        self.checkpoints.wait()
        if self.config.last_save_in_hf and self.config.save is not None and not stopped:
            folder = Path(self.config.save)
            on_first(lambda: export([*complete(folder).values()][-1], folder / "hf"))

    def step(self, number: int, dataset: Dataset, stop: bool | None = None) -> StepReport:
        """One optimizer step on the global batch of that number; ``stop`` as ``Optimizer.step``."""
        batches = self._read(number, dataset)
        self.optimizer.set_lr(self.config.lr(number))
        self.weights.start_step()
        losses = self.run(batches)
        self.depth.finish()
        report = self.optimizer.step(*self._means(losses, batches.targets), stop)
        self.balance.update(report.done)
        if self.tuning is not None:
            self.weights.wait()  # pending gathers would be timed with the products
            report = replace(report, aside_s=self.tuning.after_step())
        return report

    def _means(self, losses: list[Tensor], targets: list[Tensor]) -> tuple[Tensor, Tensor | None]:
        """This rank's mean loss, and the share of its tokens in the loss; None if all are."""
        zero = torch.zeros((), device=self.device.torch)
        loss = torch.stack(losses).sum() / self.scaler.scale if losses else zero
        if not self.config.masks_loss:
            return loss, None
        shares = [(target != IGNORED).float().mean() for target in targets]
        # This rank's part of a mean over gz, as the loss is.
        return loss, torch.stack(shares).mean() / self.mesh.grid.z.size if shares else zero

    def validate(self, dataset: Dataset) -> float:
        """Mean loss on the first held-out batches, the same on every rank; nan without targets."""
        assert self.config.validation is not None
        steps = self.config.validation.steps
        device = self.device.torch
        totals = torch.zeros(2, dtype=torch.float64, device=device)
        with torch.no_grad(), self.traffic.uncounted():
            for step in range(steps):
                phase.name = "validation"
                batches = self._read_on_host(step * self.global_batch, dataset)
                batches = batches.each(lambda tensor: tensor.to(device))
                losses = self.run.evaluate(batches)
                means = self._means(losses, batches.targets)
                found = self.optimizer.totals(*means, with_norm=False)
                totals += torch.stack((found.loss, found.share))
            self.weights.end_evaluation()
        loss, share = totals.tolist()
        return float(loss / share) if share else math.nan

    def _read(self, step: int, dataset: Dataset) -> Batches:
        """This rank's part of its replica's micro-batches; empty on stages that read no tokens."""
        if not (self.mesh.is_first or self.mesh.is_last or self.config.splits_samples):
            return Batches([], [], [])
        device = self.device.torch

        def read(step: int) -> Batches:
            return self._read_on_host(self.consumed.before(step, self.global_batch), dataset)

        if device.type == "cpu":
            return read(step)
        if self.ahead is None or self.ahead_of is not dataset:
            self.ahead = BatchesAhead(lambda step: read(step).each(Tensor.pin_memory))
            self.ahead_of = dataset
        return self.ahead.take(step).each(lambda tensor: tensor.to(device, non_blocking=True))

    def _read_on_host(self, before: int, dataset: Dataset) -> Batches:
        """Batches of the step before which training read ``before`` samples."""
        mesh, z = self.mesh, self.mesh.grid.z
        held = held_chunks(self.config.model.seq_length, mesh.cp.rank, mesh.cp.size)
        batches = micro_batches(self.config, dataset, before, mesh.replica)
        return batches.each(lambda whole: chosen(whole.chunk(z.size)[z.rank], held, 1))
