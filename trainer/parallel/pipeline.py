"""Forward and backward passes of one step: through a pipeline of stages, or through one.

Schedules are torch's: 1F1B (Narayanan et al. 2019), interleaved 1F1B (Narayanan et al. 2021),
looped breadth-first (Lamy-Poirier 2022), interleaved zero bubble (Qi et al. 2023).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from trainer.data.batches import Batches
from trainer.model.deferred import DeferredKernels
from trainer.model.precision import COMPUTE_DTYPE
from trainer.model.transformer import Stage
from trainer.parallel.mesh import Mesh
from trainer.plan.config import TrainConfig
from trainer.runtime.phase import phase

LossFn = Callable[[Tensor, Tensor], Tensor]


class _Opaque(nn.Module):
    """Hides a stage's data parallelism from torch's pipeline, which would make FSDP keep whole
    gradients until the last micro-batch and defeat ZeRO 2 and 3."""

    def __init__(self, stage: Stage, deferred: DeferredKernels | None) -> None:
        super().__init__()
        self.stage = stage
        self.deferred = deferred

    def forward(
        self, x: Tensor, bounds: Tensor | None = None, targets: Tensor | None = None
    ) -> Tensor:
        phase.name = "forward"
        x = self.stage(x, bounds, targets)
        phase.name = "backward"
        if self.deferred is not None:
            self.deferred.forwards_left -= 1
        return x


class _LeanStage(PipelineStage):
    """Keeps buffers for micro-batches in flight only.

    torch's stage keeps one per micro-batch of a step and direction: at gas 320 far more than the
    activations that 1F1B bounds.
    """

    count: Callable[[dist.P2POp], None]  # called with everything that is sent

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._counted(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._counted(super().get_bwd_send_ops(bwd_chunk_id))

    def _counted(self, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        for op in ops:
            self.count(op)
        return ops

    def _setup_forward_recv_info(self, num_microbatches: int, has_backward: bool) -> None:
        super()._setup_forward_recv_info(1, has_backward)
        self.args_recv_info.update(_for_each(self.args_recv_info[0], num_microbatches))

    def _setup_backward_recv_info(self, num_microbatches: int) -> None:
        super()._setup_backward_recv_info(1)
        self.chunks = num_microbatches
        self.grad_recv_info.update(_for_each(self.grad_recv_info[0], num_microbatches))

    def _get_recv_ops(self, recv_infos: Any) -> Any:
        for info in recv_infos:
            if not info.is_root_arg and info.buffer is None:
                meta = info.tensor_meta
                info.buffer = torch.empty(meta.shape, dtype=meta.dtype, device=self.device)
        return super()._get_recv_ops(recv_infos)

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> Any:
        received = super()._retrieve_recv_activations(fwd_chunk_id)
        _drop_buffers(self.args_recv_info[fwd_chunk_id])
        return received

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> Any:
        received = super()._retrieve_recv_grads(bwd_chunk_id)
        _drop_buffers(self.grad_recv_info[bwd_chunk_id])
        return received


def _for_each(infos: Any, micro_batches: int) -> dict[int, Any]:
    """A micro-batch's receive infos, copied for each of ``micro_batches``, without buffers."""
    _drop_buffers(infos)
    return {n: tuple(copy.copy(info) for info in infos) for n in range(micro_batches)}


def _drop_buffers(infos: Any) -> None:
    for info in infos:
        if not info.is_root_arg:
            info.buffer = None


def _stage_io(config: TrainConfig, mesh: Mesh, stage: Stage) -> dict[str, Any]:
    """Shapes and formats of a stage's input and output: torch would infer them by a trial pass."""
    model, dtype = config.model, COMPUTE_DTYPE[config.precision]
    share = mesh.tp.size if config.sequence_parallel else 1
    length = model.seq_length // config.cp
    batch, width = config.mbs // mesh.grid.z.size, model.hidden_size // mesh.grid.y.size
    hidden = torch.empty(length // share, batch, width, dtype=dtype, device="meta").requires_grad_()
    tokens = torch.empty(batch, length, dtype=torch.int64, device="meta")
    words = model.vocab_size // mesh.vocabulary.size
    ended = torch.empty(length, batch, words, dtype=dtype, device="meta").requires_grad_()
    if config.chunked_loss:
        ended = torch.empty((), device="meta").requires_grad_()
    return {
        "input_args": tokens if stage.is_first else hidden,
        "output_args": ended if stage.is_last else hidden,
    }


def _schedule(config: TrainConfig, parts: list[_LeanStage], loss_fn: LossFn) -> Any:
    name: str = config.pipeline_schedule
    if name == "1F1B" and config.vpp > 1:
        name = "Interleaved1F1B"
    elif name == "1F1B" and config.gas < config.pp:
        # torch's 1F1B refuses fewer micro-batches than stages; with so few, all of them are in
        # flight at once in either schedule.
        name = "GPipe"
    kind = get_schedule_class(name)
    several = issubclass(kind, PipelineScheduleMulti)
    return kind(parts if several else parts[0], config.gas, loss_fn=loss_fn, scale_grads=False)


class Pipeline:
    """Runs all micro-batches of a step through this rank's stages.

    ``loss_fn`` maps a micro-batch's output and targets to its loss. ``deferred`` defers weight
    gradients, if the schedule does.
    """

    def __init__(
        self,
        config: TrainConfig,
        mesh: Mesh,
        stages: list[Stage],
        loss_fn: LossFn,
        deferred: DeferredKernels | None,
    ) -> None:
        self.mesh = mesh
        self.gas = config.gas
        self.stages = stages
        self.loss_fn = loss_fn
        self.deferred = deferred
        # NCCL sets a group up in its first call, in which all ranks must take part; the schedule's
        # messages have two ranks only.
        assert mesh.pp.group is not None
        self.group = mesh.pp.group.handle
        dist.all_reduce(torch.zeros(1, device=mesh.device), group=self.group)
        self.numbers = config.stages.of_rank(mesh.pp.rank)
        self.holder = config.stages.rank_of
        self.io = [_stage_io(config, mesh, stage) for stage in stages]
        parts = [
            _LeanStage(
                _Opaque(stage, deferred),
                number,
                config.pp * config.vpp,
                mesh.device,
                group=self.group,
                dw_builder=deferred and deferred.taken,
                **io,
            )
            for number, stage, io in zip(self.numbers, stages, self.io, strict=True)
        ]
        for part in parts:
            part.count = self._count
        self.schedule = _schedule(config, parts, loss_fn)

    def _count(self, op: dist.P2POp) -> None:
        mesh = self.mesh
        level = mesh.topology.level((dist.get_rank(), op.peer))
        mesh.traffic.add("pipeline", level, op.tensor.nbytes)

    def __call__(self, batches: Batches) -> list[Tensor]:
        """Accumulate a step's gradients; returns micro-batches' losses, on the last stage only."""
        losses: list[Tensor] = []
        inputs = (torch.cat(batches.tokens),) if self.mesh.is_first else ()
        target = torch.cat(batches.targets) if self.mesh.is_last else None
        more = {"bounds": torch.cat(batches.bounds)} if batches.bounds else {}
        if target is not None:
            more["targets"] = target
        if self.deferred is not None:
            self.deferred.forwards_left = self.gas * len(self.stages)
        self.schedule.step(*inputs, target=target, losses=losses, return_outputs=False, **more)
        return [loss.detach() for loss in losses]

    def evaluate(self, batches: Batches) -> list[Tensor]:
        """The loss of each micro-batch, without a backward pass; empty except on the last stage.

        Stages run one after another: torch's schedules would set all of them up anew, twice.
        """
        losses = []
        tokens, targets, bounds = batches
        for number in range(self.gas):
            x = tokens[number]
            for index, stage, io in zip(self.numbers, self.stages, self.io, strict=True):
                if not stage.is_first and self.holder(index - 1) != self.mesh.pp.rank:
                    x = torch.empty_like(io["input_args"], device=self.mesh.device)
                    dist.recv(x, group=self.group, group_src=self.holder(index - 1))
                wanted = targets[number] if stage.is_last else None
                x = stage(x, bounds[number] if bounds else None, wanted)
                if stage.is_last:
                    losses.append(self.loss_fn(x, targets[number]))
                elif self.holder(index + 1) != self.mesh.pp.rank:
                    dist.send(x.contiguous(), group=self.group, group_dst=self.holder(index + 1))
        return losses


class GradientAccumulation:
    """Gradient accumulation without a pipeline: micro-batches one after another."""

    def __init__(self, stage: Stage, loss_fn: LossFn) -> None:
        self.stage = stage
        self.loss_fn = loss_fn

    def __call__(self, batches: Batches) -> list[Tensor]:
        losses = []
        for micro_batch in _micro_batches(batches):
            phase.name = "forward"
            loss = self._loss(*micro_batch)
            phase.name = "backward"
            loss.backward()
            losses.append(loss.detach())
        return losses

    def evaluate(self, batches: Batches) -> list[Tensor]:
        return [self._loss(*micro_batch) for micro_batch in _micro_batches(batches)]

    def _loss(self, x: Tensor, target: Tensor, bounds: Tensor | None) -> Tensor:
        return self.loss_fn(self.stage(x, bounds, target), target)


def _micro_batches(batches: Batches) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    tokens, targets, bounds = batches
    return zip(tokens, targets, bounds or [None] * len(tokens), strict=True)
