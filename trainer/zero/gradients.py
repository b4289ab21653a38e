"""Gradients of a bucket: taken from autograd, and averaged over the replicas.

ZeRO 0 and 1 accumulate whole gradients and reduce them once a step; ZeRO-2 reduces each
micro-batch's (Rajbhandari et al. 2020, section 5.2) and keeps whole gradients only of buckets being
filled or in flight.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.model.precision import COMPUTE_DTYPE
from trainer.parallel.collectives import AVG
from trainer.parallel.mesh import HolderGroups
from trainer.plan.shards import ROW, sum_format
from trainer.zero.background import Pending

Parameters = Sequence[nn.Parameter]


class BucketGradients(ABC):
    """Gradients of the parameters in a bucket; ``numel`` includes its padding."""

    # float32 mean over replicas and micro-batches that this rank updates with, final after
    # ``finish``; the whole bucket if optimizer states are replicated
    share: Tensor

    def __init__(self, parameters: Parameters, numel: int, holders: HolderGroups) -> None:
        self.numel = numel
        self.parameters = parameters
        self.parts: dict[Tensor, Tensor] = {}
        """Views of the parameters' gradients in the bucket."""
        self.missing = 0
        shares = holders.placement.optimizer_shard
        self.sharing = holders.replicas(shares, 1, "main")
        self.copies = holders.replicas(holders.size // shares, shares, "main")
        self.summed = holders.apart
        """Ranks whose tokens each gradient already sums, as experts receive them."""
        self.wire = COMPUTE_DTYPE[sum_format(holders.placement)]
        # The garbage collector does not see through autograd's hooks: one that held this object,
        # and so the parameters, would leak both, and process groups' threads with them.
        weak = weakref.ref(self)

        def arrived(parameter: Tensor) -> None:
            gradients = weak()
            assert gradients is not None  # the buckets outlive every backward pass
            gradients._take(parameter)

        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(arrived)

    def _set_parts(self, whole: Tensor) -> Tensor:
        """Set ``parts`` to views of ``whole``; returns its padding."""
        sizes = [parameter.numel() for parameter in self.parameters]
        *parts, padding = whole.split([*sizes, len(whole) - sum(sizes)])
        self.parts = {p: g.view(p.shape) for p, g in zip(self.parameters, parts, strict=True)}
        return padding

    @abstractmethod
    def start_step(self, micro_batches: int) -> None:
        """Expect ``micro_batches`` gradients of every parameter."""

    @abstractmethod
    def receive(self, parameter: Tensor, gradient: Tensor) -> None:
        """Take a micro-batch's gradient of a parameter."""

    def _take(self, parameter: Tensor) -> None:
        """Take the gradient that autograd has left with its parameter."""
        gradient, parameter.grad = parameter.grad, None
        self.receive(parameter, gradient)

    @abstractmethod
    def finish(self) -> None:
        """Wait until ``share`` is final."""

    def _average(self) -> None:
        """Average over the ranks that update the same share; each sums ``summed`` ranks' tokens."""
        if self.sharing is not None and self.copies is not None:
            self.copies.all_reduce(self.share, "gradient_sync", AVG, wire=self.wire)
        if self.summed > 1:
            self.share.div_(self.summed)


class WholeGradients(BucketGradients):
    """Gradients accumulated whole in float32, reduced after the step's last micro-batch.

    The reduction begins when the bucket is full, while the backward pass goes on.

    ``in_place``: in float32 training autograd may add to them itself. A parameter's first gradient
    of a step overwrites that of the step before, so that none need be cleared.
    """

    def __init__(
        self, parameters: Parameters, numel: int, holders: HolderGroups, in_place: bool
    ) -> None:
        super().__init__(parameters, numel, holders)
        self.whole = torch.zeros(numel, device=parameters[0].device)
        self._set_parts(self.whole)
        shares = holders.placement.optimizer_shard
        self.share = self.whole.view(shares, -1, ROW)[holders.rank % shares]
        self.in_place = in_place and parameters[0].dtype == self.whole.dtype
        self.reducing: dist.Work | None = None
        self.begun: set[Tensor] = set()

    def start_step(self, micro_batches: int) -> None:
        for parameter in self.begun:
            parameter.grad = None
        self.begun.clear()
        self.missing = micro_batches * len(self.parameters)

    def receive(self, parameter: Tensor, gradient: Tensor) -> None:
        if parameter in self.begun:
            self.parts[parameter].add_(gradient)
        else:
            self.parts[parameter].copy_(gradient)
            self.begun.add(parameter)
        self._count()

    def _take(self, parameter: Tensor) -> None:
        if self.in_place and parameter in self.begun:
            self._count()
            return
        super()._take(parameter)
        if self.in_place:
            parameter.grad = self.parts[parameter]

    def _count(self) -> None:
        self.missing -= 1
        if self.missing == 0:
            self._reduce()

    def _reduce(self) -> None:
        """Begin to average."""
        if self.sharing is not None:
            share, whole = self.share.view(-1), self.whole.to(self.wire)
            self.reducing = self.sharing.reduce_scatter(share, whole, "gradients", AVG, True)
        elif self.copies is not None:
            self.reducing = self.copies.all_reduce(self.whole, "gradients", AVG, True, self.wire)

    def finish(self) -> None:
        if self.reducing is not None:
            self.reducing.wait()
            self.reducing = None
        self._average()


class SplitGradients(BucketGradients):
    """Gradients reduced after each micro-batch, and accumulated in float32 as shares.

    A backward pass copies them into a buffer in the format they are sent in; it is freed after.
    """

    def __init__(
        self, parameters: Parameters, numel: int, holders: HolderGroups, reductions: Pending
    ) -> None:
        super().__init__(parameters, numel, holders)
        assert self.sharing is not None  # or nothing is split
        self.group = self.sharing
        self.device = parameters[0].device
        self.reductions = reductions
        self.share = torch.zeros(numel // self.group.size, device=self.device).view(-1, ROW)
        self.first = True
        self.whole: Tensor | None = None

    def start_step(self, micro_batches: int) -> None:
        self.first = True

    def receive(self, parameter: Tensor, gradient: Tensor) -> None:
        if self.whole is None:
            self.whole = torch.empty(self.numel, dtype=self.wire, device=self.device)
            self._set_parts(self.whole).zero_()
            self.missing = len(self.parameters)
        self.parts[parameter].copy_(gradient)
        self.missing -= 1
        if self.missing == 0:
            self._reduce(self.whole)
            self.whole = None
            self.parts.clear()

    def _reduce(self, whole: Tensor) -> None:
        """Start reducing a micro-batch's gradients over the replicas."""
        share, add = self.share.view(-1), not self.first
        work = self.group.reduce_scatter(share, whole, "gradients", async_op=True, add=add)
        self.reductions.add(work.wait)
        self.first = False

    def finish(self) -> None:
        self.reductions.finish()
        self.share.div_(self.group.size)
        self._average()
