"""Data parallelism with sharded gradients and weights: ZeRO stages 2 and 3, on torch's FSDP2.

Gradients are scattered after every micro-batch, so that no rank ever holds more than its share
of them. Stage 2 gathers the weights once a step and keeps them; stage 3 frees each layer's
weights after its forward and backward pass.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from trainer.initialize import initialize
from trainer.kinds import Kind, slots
from trainer.mesh import Mesh
from trainer.model import Stage
from trainer.phase import phase


class ShardedWeights:
    """The weights of a rank's stages, in shares over the replicas; see ``zero.WholeWeights``.

    The optimizer works on plain local tensors: it then needs no DTensor dispatch, and one fused
    call serves all parameters.
    """

    replicas = 1

    def __init__(
        self,
        stages: list[Stage],
        mesh: Mesh,
        zero_stage: int,
        sequence_parallel: bool,
        dtype: torch.dtype,
        seed: int,
        device: torch.device,
    ) -> None:
        self.mesh = mesh
        self.stages = stages
        self.sequence_parallel = sequence_parallel
        self.keep_whole = zero_stage == 2
        kinds = [slot.kind for stage in stages for slot in slots(stage, mesh.tp.size)]
        policy = MixedPrecisionPolicy(
            param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        options = {"mesh": mesh.device["dp"], "mp_policy": policy}
        for stage in stages:
            for layer, block in stage.blocks.items():
                _fill(block, f"blocks.{layer}.", stage, mesh, seed, dtype, device)
                fully_shard(block, reshard_after_forward=not self.keep_whole, **options)
            for name, child in stage.named_children():
                if child is not stage.blocks:
                    _fill(child, f"{name}.", stage, mesh, seed, dtype, device)
            # Embedding and head stay whole between the passes: backward begins with them.
            fully_shard(stage, reshard_after_forward=False, **options)
            if self.keep_whole:
                stage.set_reshard_after_backward(False)
        found = [slot.parameter for stage in stages for slot in slots(stage, mesh.tp.size)]
        self.parameters = found
        self.shares = [nn.Parameter(_local(parameter.detach())) for parameter in found]
        self.kinds = kinds
        self.masters: dict[Kind, list[nn.Parameter]] = {}
        for kind, share in zip(kinds, self.shares, strict=True):
            if share.numel():
                self.masters.setdefault(kind, []).append(share)

    def start_step(self) -> None:
        """Forget the last step's gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def finish_gradients(self) -> None:
        """Complete the sums over the mesh; the masters' gradients are then final."""
        phase.name = "communication"
        partial: list[Tensor] = []
        for parameter, share, kind in zip(self.parameters, self.shares, self.kinds, strict=True):
            assert parameter.grad is not None
            grad = share.grad = _local(parameter.grad)
            if kind.shared:
                dist.all_reduce(grad, group=self.mesh.embedding)
            if self.sequence_parallel and not kind.split:
                partial.append(grad)
        if partial:
            joined = torch.cat([grad.flatten() for grad in partial])
            dist.all_reduce(joined, group=self.mesh.tp.group)
            pieces = joined.split([grad.numel() for grad in partial])
            torch._foreach_copy_([grad.view(-1) for grad in partial], list(pieces))

    def publish(self) -> None:
        """Drop whole weights of before the update; the next forward pass gathers new ones."""
        if self.keep_whole:
            for stage in self.stages:
                for module in stage.modules():
                    if isinstance(module, FSDPModule):
                        module.reshard()


def _fill(
    module: nn.Module,
    prefix: str,
    stage: Stage,
    mesh: Mesh,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Give a module storage and its first weights, as exact as the computation's format is."""
    module.to_empty(device=device)
    initialize(module, prefix, stage.model, seed, mesh.tp.rank, mesh.tp.size)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.to(dtype))


def _local(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.to_local()
