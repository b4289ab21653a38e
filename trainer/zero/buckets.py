"""Data parallelism with whole weights: ZeRO stages 0 and 1 (Rajbhandari et al. 2020).

Weights and gradients of a rank live in a few flat buckets. A bucket's gradients are reduced as
soon as the last micro-batch's backward pass has filled it, while the pass goes on. Stage 0 gives
every rank all gradients; stage 1 gives each rank its share, whose weights it alone updates. They
travel back while the next forward pass goes on, which waits for those of each layer in turn. The
ranks that share may also be fewer than all, say those of a node.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.config import TrainConfig
from trainer.model.initialize import initialize
from trainer.model.parameters import Piece, Slot, slots
from trainer.model.precision import COMPUTE_DTYPE, WIRE_DTYPE
from trainer.model.shapes import Traits
from trainer.model.transformer import Stage
from trainer.parallel.mesh import Mesh
from trainer.runtime.phase import phase
from trainer.zero.layout import ROW, fill, padded


class Bucket:
    """Consecutive parameters of equal traits, in one piece of memory.

    Args:
        members: the parameters, of any device and contents; they become views of this memory.
        mesh: where this rank stands, and over how many ranks optimizer states are split.
        dtype: of the computation. Gradients are summed in float32 whatever it is.
        device: of the memory.
    """

    def __init__(
        self, members: list[Slot], mesh: Mesh, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.traits = members[0].traits
        self.members = members
        shares = mesh.placement.optimizer.degree
        self.sharing = mesh.replicas(shares, 1, "main")
        self.copies = mesh.replicas(mesh.states.size // shares, shares, "main")
        self.wire = WIRE_DTYPE[mesh.placement.reduce_format]
        self.receivers: dict[nn.Parameter, Callable[[Tensor], None]] = {}
        self.waiting: list[Callable[[], None]] = []
        total = padded(members, shares)
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
        self.begin = mesh.states.rank % shares * share
        self.weight_share = self.weights[self.begin : self.begin + share].view(-1, ROW)
        self.grad_share = self.grads[self.begin : self.begin + share].view(-1, ROW)
        self.master: nn.Parameter | None = None
        self.missing = 0

    def _receive(self, parameter: nn.Parameter, view: Tensor) -> None:
        """Let autograd sum a parameter's gradient into the bucket."""
        in_place = parameter.dtype == view.dtype
        if in_place:
            parameter.grad = view
        # The garbage collector does not see through autograd's hooks. One that held the bucket,
        # which holds the parameter, would keep both for ever, and their process groups' threads.
        weak = weakref.ref(self)

        def arrived(parameter: Tensor) -> None:
            if not in_place:
                view.add_(parameter.grad)
                parameter.grad = None
            bucket = weak()
            assert bucket is not None  # whoever runs a backward pass keeps the buckets
            bucket.missing -= 1
            if bucket.missing == 0:
                bucket.reduce()

        def receive(gradient: Tensor) -> None:
            if in_place:
                view.add_(gradient)
            else:
                parameter.grad = gradient
            arrived(parameter)

        parameter.register_post_accumulate_grad_hook(arrived)
        self.receivers[parameter] = receive

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
        average = dist.ReduceOp.AVG
        if self.sharing is not None:
            whole = self.grads.to(self.wire)
            share = self.grad_share.view(-1)
            out = share if whole is self.grads else torch.empty_like(share, dtype=self.wire)
            work = self.sharing.reduce_scatter(out, whole, "gradients", average, async_op=True)
            self._later(work, out, share)
        elif self.copies is not None:
            out = self.grads.to(self.wire)
            work = self.copies.all_reduce(out, "gradients", average, async_op=True)
            self._later(work, out, self.grads)

    def finish_reduce(self) -> None:
        """Until the gradients are final."""
        self.wait()
        if self.sharing is not None and self.copies is not None:
            out = self.grad_share.to(self.wire)
            self.copies.all_reduce(out, "gradient_sync", dist.ReduceOp.AVG)
            if out is not self.grad_share:
                self.grad_share.copy_(out)

    def _later(self, work: dist.Work | None, found: Tensor, wanted: Tensor) -> None:
        """Wait for the work when asked to, and bring what it found to its place."""

        def finish() -> None:
            if work is not None:
                work.wait()
            if found is not wanted:
                wanted.copy_(found)

        self.waiting.append(finish)

    def publish(self) -> None:
        """Begin to bring the updated weights to the model on every replica."""
        assert self.master is not None
        if self.master.dtype != self.weights.dtype:
            self.weight_share.copy_(self.master.detach())
        if self.sharing is not None:
            share = self.weight_share.view(-1)
            work = self.sharing.all_gather(self.weights, share, "publish", async_op=True)
            self._later(work, self.weights, self.weights)

    def wait(self) -> None:
        """Until what was begun is done."""
        for finish in self.waiting:
            finish()
        self.waiting.clear()

    def pieces(self) -> Iterator[Piece]:
        """This rank's share of each parameter that has a part in it."""
        assert self.master is not None
        end = self.begin + self.master.numel()
        offset = 0
        for slot in self.members:
            low = max(self.begin, offset)
            high = min(end, offset + slot.parameter.numel())
            if low < high:
                yield Piece(slot, self.master, low - self.begin, high - low, low - offset)
            offset += slot.parameter.numel()


class WholeWeights:
    """The weights of a rank's stages, whole on every replica.

    Args:
        stages: of this rank, without storage yet (meta device).
        mesh: where this rank stands, and the placement.
        config: what is trained.
        device: to build on.
    """

    def __init__(
        self, stages: list[Stage], mesh: Mesh, config: TrainConfig, device: torch.device
    ) -> None:
        self.mesh = mesh
        self.micro_batches = config.gas
        self.sequence_parallel = config.sequence_parallel and mesh.tp.size > 1
        self.counts = mesh.states.rank < mesh.placement.optimizer.degree
        dtype = COMPUTE_DTYPE[config.precision]
        every = [slot for stage in stages for slot in slots(stage)]
        buckets = fill(reversed(every), config.ddp_bucket_size)
        self.buckets = [Bucket(members, mesh, dtype, device) for members in buckets]
        for stage in stages:
            initialize(stage, "", stage.model, config.seed)
            self._wait_before_use(stage)
        self.masters: dict[Traits, list[nn.Parameter]] = {}
        for bucket in self.buckets:
            self.masters.setdefault(bucket.traits, []).append(bucket.make_master())

    def _wait_before_use(self, stage: Stage) -> None:
        """Let each part of a stage wait for its own weights, should they be on their way."""
        holder = {parameter: bucket for bucket in self.buckets for parameter in bucket.parameters}
        blocks = stage.blocks.values()
        others = (m for m in stage.children() if m is not stage.blocks)
        for module in (*blocks, *others):
            needed = {holder[parameter]: None for parameter in module.parameters()}
            module.register_forward_pre_hook(functools.partial(_wait, [*needed]))

    def pieces(self) -> Iterator[Piece]:
        """This rank's master weights, each a part of one parameter."""
        for bucket in self.buckets:
            yield from bucket.pieces()

    def receive(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Take a micro-batch's gradient of a parameter that autograd was not given."""
        next(b for b in self.buckets if parameter in b.receivers).receivers[parameter](gradient)

    def start_step(self) -> None:
        """Forget the last step's gradients."""
        for bucket in self.buckets:
            bucket.start_step(self.micro_batches)

    def end_evaluation(self) -> None:
        """Nothing stays of passes without a backward pass."""

    def finish_gradients(self) -> None:
        """Complete the sums over the mesh; the masters' gradients are then final."""
        phase.name = "communication"
        for bucket in self.buckets:
            bucket.finish_reduce()
        if self.mesh.folded:
            self._sum_both_ends()
        for bucket in self.buckets:
            if bucket.traits.shared and self.mesh.embedding is not None:
                self.mesh.embedding.all_reduce(bucket.grad_share, "embedding")
            if (
                self.sequence_parallel
                and not bucket.traits.split
                and self.mesh.tp.group is not None
            ):
                self.mesh.tp.group.all_reduce(bucket.grad_share, "tensor")
            depth = self.mesh.grid.z
            if depth.group is not None and depth.name not in bucket.traits.split:
                depth.group.all_reduce(bucket.grad_share, "gradient_sync")

    def _sum_both_ends(self) -> None:
        """Of a tied embedding and its copy in the last stage, where one rank has both."""
        ends = [bucket.grad_share for bucket in self.buckets if bucket.traits.shared]
        if ends:
            one, other = ends
            other.copy_(one.add_(other))

    def publish(self) -> None:
        """Bring the updated weights to the model on every replica, those of its first layers first.

        The grid's products take weights as they like, some ahead: it begins when all are there.
        """
        for bucket in reversed(self.buckets):
            bucket.publish()
        if self.mesh.grid.size > 1:
            self.wait()

    def wait(self) -> None:
        """Until all weights are there."""
        for bucket in self.buckets:
            bucket.wait()


def _wait(buckets: list[Bucket], *_: object) -> None:
    """A module's hook before its forward pass."""
    for bucket in buckets:
        bucket.wait()
