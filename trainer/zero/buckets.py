"""Data parallelism with whole weights: ZeRO stages 0 to 2 (Rajbhandari et al. 2020).

Weights lie in flat buckets, whose gradients are reduced during the backward pass: stage 0
all-reduces them once a step; stage 1 reduce-scatters them to the ranks that update them; stage 2
after every micro-batch, so that whole gradients are never kept. Updated weights are gathered during
the next forward pass, layer by layer. States may be sharded over fewer than all ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.model.initialize import initialize
from trainer.model.parameters import Piece, Slot, slots
from trainer.model.precision import COMPUTE_DTYPE
from trainer.model.transformer import Stage
from trainer.parallel.mesh import HolderGroups, Mesh
from trainer.plan.config import TrainConfig
from trainer.plan.shards import ROW, Traits, fill, padded, segments
from trainer.plan.states import PENDING_REDUCTIONS
from trainer.runtime.phase import phase
from trainer.zero.background import Pending
from trainer.zero.gradients import BucketGradients, SplitGradients, WholeGradients


class Bucket:
    """Consecutive parameters of equal traits, as views of one buffer.

    Gradients are summed in float32, whatever the ``dtype``. ``reductions`` are those in flight, if
    gradients are reduced after each micro-batch. ``in_place``: see ``WholeGradients``.
    """

    def __init__(
        self,
        members: list[Slot],
        holders: HolderGroups,
        dtype: torch.dtype,
        reductions: Pending | None,
        in_place: bool,
    ) -> None:
        self.traits = members[0].traits
        self.members = members
        shares = holders.placement.optimizer_shard
        self.sharing = holders.replicas(shares, 1, "main")
        self.waiting: list[dist.Work] = []
        total = padded(members, shares)
        self.weights = torch.zeros(total, dtype=dtype, device=holders.mesh.device)
        self.parameters: list[nn.Parameter] = []
        sizes = [slot.numel for slot in members]
        for slot, part in zip(members, self.weights[: sum(sizes)].split(sizes), strict=True):
            parameter = nn.Parameter(part.view(slot.parameter.shape))
            setattr(slot.module, slot.name, parameter)
            self.parameters.append(parameter)
        self.gradients: BucketGradients
        if reductions is None or holders.placement.gradient_shard == 1:
            self.gradients = WholeGradients(self.parameters, total, holders, in_place)
        else:
            self.gradients = SplitGradients(self.parameters, total, holders, reductions)
        self.weight_share = self.weights.view(shares, -1, ROW)[holders.rank % shares]
        self.begin = holders.rank % shares * self.weight_share.numel()

    @functools.cached_property
    def master(self) -> nn.Parameter:
        """Float32 weights that the optimizer updates, with gradients; copied at the first use."""
        master = nn.Parameter(self.weight_share.float())
        master.grad = self.gradients.share
        return master

    def publish(self) -> None:
        """Start gathering the updated weights on every replica."""
        if self.master.dtype != self.weights.dtype:
            self.weight_share.copy_(self.master.detach())
        if self.sharing is not None:
            share = self.weight_share.view(-1)
            work = self.sharing.all_gather(self.weights, share, "publish", async_op=True)
            self.waiting.append(work)

    def wait(self) -> None:
        for work in self.waiting:
            work.wait()
        self.waiting.clear()

    def pieces(self) -> Iterator[Piece]:
        """The parts of parameters in this rank's share."""
        sizes = (slot.numel for slot in self.members)
        for number, begin, offset, length in segments(sizes, self.begin, self.master.numel()):
            yield Piece(self.members[number], self.master, offset, length, begin)


class WholeWeights:
    """The weights of a rank's stages, whole on every replica; the stages have no storage yet.

    ``experts_only``: FSDP2 holds the others.
    """

    def __init__(
        self, stages: list[Stage], mesh: Mesh, config: TrainConfig, experts_only: bool = False
    ) -> None:
        self.mesh = mesh
        self.micro_batches = config.gas
        # Ranks whose gradients of replicated parameters are partial sums.
        self.partial = mesh.tp.group if config.sequence_parallel else None
        dtype = COMPUTE_DTYPE[config.precision]
        split = mesh.placement.gradient_shard > 1 and not config.sums_whole_gradients
        self.reductions = Pending(PENDING_REDUCTIONS) if split else None
        for holders in (mesh.dense, mesh.experts):  # on all ranks, even without experts here
            shares = holders.placement.optimizer_shard
            holders.replicas(shares, 1, "main")
            holders.replicas(holders.size // shares, shares, "main")
        held = [
            [slot for slot in slots(stage) if "ep" in slot.traits.split or not experts_only]
            for stage in stages
        ]
        # Before its first step torch's pipeline clears gradients of modules that FSDP2 holds.
        options = (dtype, self.reductions, not experts_only)
        self.buckets = [
            Bucket(members, mesh.holders(members[0].traits.split), *options)
            for mine in reversed(held)  # each stage has backward passes of its own
            for members in fill(reversed(mine), config.ddp_bucket_size)
        ]
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.parameters}
        for stage, mine in zip(stages, held, strict=True):
            for module, path in dict.fromkeys((slot.module, slot.path) for slot in mine):
                initialize(module, f"{path}.", stage.model, config.seed)
            self._wait_before_use(stage)
        self.masters: dict[Traits, list[nn.Parameter]] = {}
        for bucket in self.buckets:
            self.masters.setdefault(bucket.traits, []).append(bucket.master)

    def _wait_before_use(self, stage: Stage) -> None:
        """Make each part of a stage wait for its own weights, if they are still being gathered."""
        blocks = stage.blocks.values()
        others = (m for m in stage.children() if m is not stage.blocks)
        for module in (*blocks, *others):
            held = (p for p in module.parameters() if p in self.bucket_of)
            needed = {self.bucket_of[parameter]: None for parameter in held}
            module.register_forward_pre_hook(functools.partial(_wait, [*needed]))

    def pieces(self) -> Iterator[Piece]:
        """This rank's master weights, each a part of one parameter."""
        for bucket in self.buckets:
            yield from bucket.pieces()

    def receive(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Take a micro-batch's gradient of a parameter, not from autograd."""
        self.bucket_of[parameter].gradients.receive(parameter, gradient)

    def start_step(self) -> None:
        """Forget the last step's gradients."""
        for bucket in self.buckets:
            bucket.gradients.start_step(self.micro_batches)

    def end_evaluation(self) -> None:
        """Nothing to do: evaluation leaves no state."""

    def finish_gradients(self) -> None:
        """Complete the sums over the mesh; the masters' gradients are then final."""
        phase.name = "communication"
        for bucket in self.buckets:
            bucket.gradients.finish()
        ends = [bucket.gradients.share for bucket in self.buckets if bucket.traits.shared]
        if self.mesh.folded and ends:  # one rank holds a tied embedding and its output copy
            one, other = ends
            other.copy_(one.add_(other))
        depth = self.mesh.grid.z
        for bucket in self.buckets:
            traits, share = bucket.traits, bucket.gradients.share
            if traits.shared and self.mesh.embedding is not None:
                self.mesh.embedding.all_reduce(share, "embedding")
            if self.partial is not None and not traits.split:
                self.partial.all_reduce(share, "tensor")
            if depth.group is not None and depth.name not in traits.split:
                depth.group.all_reduce(share, "gradient_sync")

    def publish(self) -> None:
        """Gather the updated weights on every replica, the first layers' first.

        The grid gathers some weights ahead, in its own order: there this waits for all of them.
        """
        for bucket in reversed(self.buckets):
            bucket.publish()
        if self.mesh.grid.size > 1:
            self.wait()

    def wait(self) -> None:
        _wait(self.buckets)


def _wait(buckets: list[Bucket], *_: object) -> None:
    """Wait for weights; also a hook before a module's forward pass."""
    for bucket in buckets:
        bucket.wait()
