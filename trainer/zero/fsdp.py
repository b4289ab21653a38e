"""Data parallelism with sharded gradients or weights: ZeRO 2 and 3, hpZ, MiCS, ZeRO++, ZeRO-topo.

torch's FSDP2 gathers a layer's weights before a pass, frees them after it, and hands over the
gradients; ``hooks`` replace its collectives by those of the placement. Gradients are
reduce-scattered after every micro-batch, or once a step, if memory allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, share_comm_ctx

from trainer.model.experts import stage_mixtures
from trainer.model.initialize import initialize
from trainer.model.parameters import Piece, Slot, slots
from trainer.model.precision import COMPUTE_DTYPE
from trainer.model.transformer import Stage
from trainer.parallel.mesh import HolderGroups, Mesh
from trainer.plan.config import TrainConfig
from trainer.plan.placement import Level, Placement
from trainer.plan.shards import Shape, Traits, UnitLayout
from trainer.runtime.phase import phase
from trainer.zero import background
from trainer.zero.buckets import WholeWeights
from trainer.zero.hooks import HookContext
from trainer.zero.unit import FsdpUnit, unit_groups

PENDING_UNITS = 2
"""Units whose gradients may wait for a host's network at once; each holds whole gradients."""


class ShardedWeights:
    """Sharded weights of a rank's stages, with the interface of ``buckets.WholeWeights``."""

    def __init__(self, stages: list[Stage], mesh: Mesh, config: TrainConfig) -> None:
        self.mesh = mesh
        self.partial = mesh.tp.group if config.sequence_parallel else None  # see ``WholeWeights``
        self.context = _hook_context(config, mesh)
        self.whole: WholeWeights | None = None
        """Experts that FSDP2 cannot hold: over a single rank it calls no hooks."""
        if not mesh.experts.placement.fully_sharded:
            self.whole = WholeWeights(stages, mesh, config, experts_only=True)
        self.shards = {
            holders.apart: self._shards(holders)
            for holders in (mesh.dense, *([] if self.whole else [mesh.experts]))
        }
        self.stages: Any = stages  # under FSDP2 from here on
        self.units = [unit for stage in stages for unit in self._place(stage, config)]
        share_comm_ctx(stages)  # chunks of a pipeline take turns: one set of streams is enough
        self.masters: dict[Traits, list[nn.Parameter]] = {}
        for piece in (piece for unit in self.units for piece in unit.pieces):
            self.masters.setdefault(piece.slot.traits, []).append(piece.master)
        if self.whole is not None:
            self.masters |= self.whole.masters

    def _layout(self, holders: HolderGroups, shapes: tuple[Shape, ...]) -> UnitLayout:
        apart = self.mesh.axes.of_states.stride("dp") * holders.apart
        near = self.mesh.topology.replicas_per_node(holders.size, apart)
        return UnitLayout(holders.placement, shapes, near)

    def _shards(self, holders: HolderGroups) -> DeviceMesh:
        """FSDP2's mesh of the ranks that stored weights are sharded over.

        Makes all groups of a unit, even if this rank's stages have no such parameters.
        """
        group = unit_groups(self._layout(holders, ()), holders).gather
        return DeviceMesh.from_group(group.handle, self.mesh.device.type)

    def _place(self, stage: Stage, config: TrainConfig) -> list[FsdpUnit]:
        """Allocate and initialize a stage unit by unit, and put each under FSDP2."""
        pipelined = not (stage.is_first and stage.is_last)
        mixtures = stage_mixtures(stage) if self.mesh.ep.size > 1 else []
        experts: list[nn.Module] = [mixture.experts for mixture in mixtures]
        elsewhere: set[nn.Parameter] = set()
        if self.whole is not None:
            elsewhere = {parameter for one in experts for parameter in one.parameters()}
            experts = []
        held = [slot for slot in slots(stage) if slot.parameter not in elsewhere]
        modules: list[nn.Module] = [*experts, *stage.blocks.values()]
        if pipelined:
            # As units, so that both stages that share the table shard it alike.
            modules += [m for m in (stage.embedding, stage.head) if m is not None]
        units: list[FsdpUnit] = []
        taken: set[nn.Module] = set()
        for module in [*modules, stage]:
            inside = {*module.modules()} - taken
            taken |= inside
            members = [slot for slot in held if slot.module in inside]
            holders = self.mesh.experts if module in experts else self.mesh.dense
            self._fill(members, stage, config, holders.placement)
            # Without a pipeline the backward pass begins where the forward pass ended.
            outermost = module is stage and not pipelined
            units += self._shard(module, members, holders, outermost, elsewhere)
        self._set_prefetches(stage, pipelined, modules)
        return units

    def _shard(
        self,
        module: nn.Module,
        members: list[Slot],
        holders: HolderGroups,
        outermost: bool,
        elsewhere: set[nn.Parameter],
    ) -> list[FsdpUnit]:
        """Put a module under FSDP2; returns its unit, if it has parameters of its own."""
        placement, computed = holders.placement, self.context.dtype
        shapes = tuple(tuple(slot.parameter.shape) for slot in members)
        wire = placement.reduce_format
        narrow = wire.quantized or COMPUTE_DTYPE[wire] == computed
        reduced = computed if narrow else torch.float32
        fully_shard(
            module,
            mesh=self.shards[holders.apart],
            mp_policy=MixedPrecisionPolicy(computed, reduced, cast_forward_inputs=False),
            reshard_after_forward=not (placement.keeps_whole or outermost),
            ignored_params=elsewhere or None,
        )
        if placement.keeps_whole:
            module.set_reshard_after_backward(False, recurse=False)
        if not members:
            return []
        layout = self._layout(holders, shapes)
        return [FsdpUnit(module, members, layout, holders, self.context)]

    def _set_prefetches(self, stage: Stage, pipelined: bool, modules: list[nn.Module]) -> None:
        """Set which weights are prefetched while others are used."""
        held = {*modules}
        layers = [[m for m in block.modules() if m in held] for block in stage.blocks.values()]
        if pipelined:
            # By default FSDP2 prefetches the module that ran before, in any micro-batch: at a
            # stage's first layer the last one of another micro-batch, in vain.
            ended = [m for layer in layers for m in reversed(layer)]  # experts before their layer
            ran = [m for m in (stage.embedding, *ended, stage.head, stage) if m is not None]
            for before, after in zip([ran[0], *ran], ran, strict=False):
                after.set_modules_to_backward_prefetch([before])
        if self.mesh.device.type == "cpu":  # streams overlap without prefetches
            begun = [m for layer in layers for m in layer]
            for before, after in zip([stage, *begun], begun, strict=False):
                before.set_modules_to_forward_prefetch([after])

    def _fill(
        self, members: list[Slot], stage: Stage, config: TrainConfig, placement: Placement
    ) -> None:
        """Initial weights, rounded to the compute format, in the storage format."""
        computed = self.context.dtype
        are_masters = placement.storage_degree == placement.optimizer_shard
        stored = torch.float32 if are_masters else computed
        for module, path in dict.fromkeys((slot.module, slot.path) for slot in members):
            module.to_empty(device=self.mesh.device, recurse=False)
            initialize(module, f"{path}.", stage.model, config.seed)
            for name, parameter in list(module.named_parameters(recurse=False)):
                exact = parameter.detach().to(computed).to(stored)
                setattr(module, name, nn.Parameter(exact))

    def pieces(self) -> Iterator[Piece]:
        for unit in self.units:
            yield from unit.pieces
        if self.whole is not None:
            yield from self.whole.pieces()

    def receive(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Never called: FSDP2 takes all gradients from autograd."""
        raise NotImplementedError

    def start_step(self) -> None:
        for unit in self.units:
            unit.reduce.start_step()
        if self.whole is not None:
            self.whole.start_step()

    def end_evaluation(self) -> None:
        """Discard the state that passes without a backward pass leave."""
        for unit in self.units:
            unit.gather.weights_changed()
        for stage in self.stages:
            stage.reset_iter_state()

    def finish_gradients(self) -> None:
        phase.name = "communication"
        self.context.reduction.finish()
        if self.whole is not None:
            self.whole.finish_gradients()
        for unit in self.units:
            if unit.members[0].traits.shared and self.mesh.embedding is not None:
                self.mesh.embedding.all_reduce(unit.reduce.final, "embedding")
        if self.partial is None:
            return
        whole = [piece.master.grad for piece in self.pieces() if not piece.slot.traits.split]
        partial = [grad for grad in whole if grad is not None]
        if partial:
            joined = _flatten_dense_tensors(partial)
            self.partial.all_reduce(joined, "tensor")
            torch._foreach_copy_(partial, _unflatten_dense_tensors(joined, partial))

    def wait(self) -> None:
        """Wait for experts in buckets; ``publish`` has waited for all other updated weights."""
        if self.whole is not None:
            self.whole.wait()

    def publish(self) -> None:
        """Copy updated weights to the shards that passes gather from, and free gathered weights."""
        if self.context.gathering is not None:
            self.context.gathering.finish()
        if self.whole is not None:
            self.whole.publish()
        with torch.no_grad():
            for unit in self.units:
                unit.publish()
                unit.module.reshard()  # whole weights, kept or left from an evaluation


def _hook_context(config: TrainConfig, mesh: Mesh) -> HookContext:
    dtype = COMPUTE_DTYPE[config.precision]
    if mesh.device.type != "cpu":
        stream = background.DeviceStream()
        return HookContext(config, mesh.device, dtype, stream, stream, stream)
    # All ranks choose alike, so that they begin collectives in one order.
    places = (mesh.dense.placement, mesh.experts.placement)
    gathering: background.ThreadStream | None = None
    if any(p.gather_format.quantized or p.secondary_shard for p in places):
        gathering = background.ThreadStream("gather", 2)
    reduction: background.ThreadStream | background.Pending = background.Pending(PENDING_UNITS)
    far = mesh.world.level is Level.INTER_NODE  # a ring takes several calls
    if far or any(p.reduce_format.quantized for p in places):
        reduction = background.ThreadStream("reduce", PENDING_UNITS)
    return HookContext(config, mesh.device, dtype, gathering, reduction, background.InlineStream())
