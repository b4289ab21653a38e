"""Data parallelism with whole weights: ZeRO stages 0 and 1 (Rajbhandari et al. 2020).

Weights and gradients of a rank live in a few flat buckets. A bucket's gradients are reduced as
soon as the last micro-batch's backward pass has filled it, while the pass goes on. Stage 0 gives
every rank all gradients; stage 1 gives each rank its share, whose weights it alone updates.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.collectives import all_gather, reduce_scatter
from trainer.initialize import initialize
from trainer.kinds import Kind, Slot, slots
from trainer.mesh import Mesh
from trainer.model import Stage
from trainer.phase import phase

BUCKET_ELEMENTS = 16 * 2**20
ROW = 1024
"""Buckets are padded to whole rows: a norm is then exact, a row at a time."""


class Bucket:
    """Consecutive parameters of one kind, in one piece of memory.

    Args:
        members: the parameters, of any device and contents; they become views of this memory.
        mesh: where this rank stands.
        sharded: whether each data-parallel rank keeps the optimizer's states of its share only.
        dtype: of the computation. Gradients are summed in float32 whatever it is.
        device: of the memory.
    """

    def __init__(
        self,
        members: list[Slot],
        mesh: Mesh,
        sharded: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.kind = members[0].kind
        self.group = mesh.dp.group
        self.sharded = sharded
        self.works: list[dist.Work] = []
        used = sum(slot.parameter.numel() for slot in members)
        shares = mesh.dp.size if sharded else 1
        total = -(-used // (shares * ROW)) * shares * ROW
        self.weights = torch.zeros(total, dtype=dtype, device=device)
        self.grads = torch.zeros(total, device=device)
        self.parameters: list[nn.Parameter] = []
        offset = 0
        for slot in members:
            old = slot.parameter
            end = offset + old.numel()
            parameter = nn.Parameter(self.weights[offset:end].view(old.shape))
            setattr(slot.module, slot.name, parameter)
            self._receive(parameter, self.grads[offset:end].view(old.shape))
            self.parameters.append(parameter)
            offset = end
        share = total // shares
        begin = mesh.dp.rank * share if sharded else 0
        self.weight_share = self.weights[begin : begin + share].view(-1, ROW)
        self.grad_share = self.grads[begin : begin + share].view(-1, ROW)
        self.master: nn.Parameter | None = None
        self.missing = 0

    def _receive(self, parameter: nn.Parameter, view: Tensor) -> None:
        """Let autograd sum a parameter's gradient into the bucket."""
        in_place = parameter.dtype == view.dtype
        if in_place:
            parameter.grad = view

        def arrived(parameter: Tensor) -> None:
            if not in_place:
                view.add_(parameter.grad)
                parameter.grad = None
            self.missing -= 1
            if self.missing == 0:
                self.reduce()

        parameter.register_post_accumulate_grad_hook(arrived)

    def make_master(self) -> nn.Parameter:
        """The float32 weights that the optimizer updates, with their gradients."""
        self.master = nn.Parameter(self.weight_share.float())
        self.master.grad = self.grad_share
        return self.master

    def start_step(self, micro_batches: int) -> None:
        """Expect so many gradients of every parameter."""
        self.grads.zero_()
        self.missing = micro_batches * len(self.parameters)

    def reduce(self) -> None:
        """Begin to average the gradients over the replicas."""
        if self.group is None:
            return
        if self.sharded:
            work = reduce_scatter(
                self.grad_share.view(-1), self.grads, self.group, dist.ReduceOp.AVG, async_op=True
            )
        else:
            work = dist.all_reduce(self.grads, dist.ReduceOp.AVG, self.group, async_op=True)
        self.works.append(work)

    def publish(self) -> None:
        """Begin to bring the updated weights to the model on every replica."""
        assert self.master is not None
        if self.master.dtype != self.weights.dtype:
            self.weight_share.copy_(self.master.detach())
        if self.sharded and self.group is not None:
            self.works.append(
                all_gather(self.weights, self.weight_share.view(-1), self.group, async_op=True)
            )

    def wait(self) -> None:
        """Until what was begun is done."""
        for work in self.works:
            work.wait()
        self.works.clear()


class WholeWeights:
    """The weights of a rank's stages, whole on every replica.

    Args:
        stages: of this rank, without storage yet (meta device).
        mesh: where this rank stands.
        zero_stage: 0 or 1.
        micro_batches: per step and replica.
        sequence_parallel: gradients of unsplit parameters are partial sums over tp.
        dtype: of the computation.
        seed: of the first weights.
        device: to build on.
    """

    def __init__(
        self,
        stages: list[Stage],
        mesh: Mesh,
        zero_stage: int,
        micro_batches: int,
        sequence_parallel: bool,
        dtype: torch.dtype,
        seed: int,
        device: torch.device,
    ) -> None:
        self.mesh = mesh
        self.micro_batches = micro_batches
        self.sequence_parallel = sequence_parallel
        self.sharded = zero_stage == 1 and mesh.dp.size > 1
        every = [slot for stage in stages for slot in slots(stage, mesh.tp.size)]
        self.buckets = [
            Bucket(members, mesh, self.sharded, dtype, device) for members in fill(reversed(every))
        ]
        for stage in stages:
            initialize(stage, "", stage.model, seed, mesh.tp.rank, mesh.tp.size)
        self.masters: dict[Kind, list[nn.Parameter]] = {}
        for bucket in self.buckets:
            self.masters.setdefault(bucket.kind, []).append(bucket.make_master())
        self.replicas = 1 if self.sharded else mesh.dp.size

    def start_step(self) -> None:
        """Forget the last step's gradients."""
        for bucket in self.buckets:
            bucket.start_step(self.micro_batches)

    def finish_gradients(self) -> None:
        """Complete the sums over the mesh; the masters' gradients are then final."""
        phase.name = "communication"
        for bucket in self.buckets:
            bucket.wait()
        for bucket in self.buckets:
            if bucket.kind.shared:
                dist.all_reduce(bucket.grad_share, group=self.mesh.embedding)
            if self.sequence_parallel and not bucket.kind.split:
                dist.all_reduce(bucket.grad_share, group=self.mesh.tp.group)

    def publish(self) -> None:
        """Bring the updated weights to the model on every replica."""
        for bucket in self.buckets:
            bucket.publish()
        for bucket in self.buckets:
            bucket.wait()


def fill(members: Iterable[Slot], limit: int | None = None) -> list[list[Slot]]:
    """Group parameters into buckets of one kind, at most ``limit`` elements unless alone.

    Given in the order in which gradients arrive, so that full buckets leave early.
    """
    limit = BUCKET_ELEMENTS if limit is None else limit
    done: list[list[Slot]] = []
    filling: dict[Kind, tuple[list[Slot], int]] = {}
    for slot in members:
        size = slot.parameter.numel()
        bucket, held = filling.get(slot.kind, ([], 0))
        if bucket and held + size > limit:
            done.append(bucket)
            bucket, held = [], 0
        filling[slot.kind] = ([*bucket, slot], held + size)
    return done + [bucket for bucket, _ in filling.values()]
