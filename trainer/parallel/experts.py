"""Expert parallelism: experts distributed over ranks, tokens sent to them and back by all-to-all.

The ranks are those of dp, cp and, with sequence parallelism, tp, which splits the tokens as well.
``trainer.plan.axes.ep`` has the groups and the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainer.model.experts import Dispatch, Permute, Routes, inverse_of, stage_mixtures
from trainer.model.slices import Cut, Split
from trainer.model.transformer import Stage
from trainer.parallel.collectives import Group
from trainer.parallel.mesh import Mesh
from trainer.parallel.tensor import split
from trainer.plan.config import TrainConfig


def deal_out_experts(stage: Stage, mesh: Mesh) -> None:
    """Shrink a stage without storage (meta device) to this rank's share of the experts."""
    axes = ("ep", "tp") if mesh.tp.size > 1 else ("ep",)
    for mixture in stage_mixtures(stage):
        mixture.dispatch = RankDispatch(mesh)
        if mesh.ep.size > 1:
            for matrices in (mixture.experts.up, mixture.experts.down):
                cut = Cut(mesh.ep.rank, mesh.ep.size)
                split(matrices, {"weight": Split(axes, rows=cut)})


class _Plan(NamedTuple):
    """Rows that a rank sends and receives."""

    send: list[int]
    receive: list[int]
    order: Tensor  # received rows sorted by expert, then by the rank they come from
    inverse: Tensor
    counts: Tensor  # received rows of each expert


class RankDispatch(Dispatch):
    """Dispatch to the experts' ranks and back, in all-to-alls over an expert-parallel group."""

    def __init__(self, mesh: Mesh) -> None:
        self.group = mesh.ep.group
        self.sharers = [axis.group for axis in (mesh.cp, mesh.tp) if axis.group is not None]
        self.tensor_ranks = mesh.tp.size

    def plan(self, counts: Tensor) -> _Plan | None:
        group = self.group
        if group is None:
            return None
        arriving = torch.empty_like(counts)
        group.all_to_all(arriving, counts, "routing")
        table = arriving.view(group.size, -1)  # source rank, own expert
        sums = torch.stack((counts.view(group.size, -1).sum(1), table.sum(1)))
        send, receive = sums.tolist()  # the one point at which the host waits
        expert = torch.arange(table.size(1), device=counts.device).repeat(group.size)
        expert = expert.repeat_interleave(arriving, output_size=sum(receive))
        order = expert.argsort(stable=True)
        return _Plan(send, receive, order, inverse_of(order), table.sum(0))

    def compute(self, experts: Callable[..., Tensor], rows: Tensor, routes: Routes) -> Tensor:
        if self.group is None:
            return super().compute(experts, rows, routes)
        send, receive, order, inverse, counts = routes.plan
        rows = _Exchange.apply(rows, send, receive, self.group)
        rows = experts(Permute.apply(rows, order, inverse, 1), counts)
        rows = Permute.apply(rows, inverse, order, 1)
        return _Exchange.apply(rows, receive, send, self.group)

    def sum_counts(self, counts: Tensor) -> None:
        for group in self.sharers:
            group.all_reduce(counts, "routing")


class _Exchange(torch.autograd.Function):
    """All-to-all of rows; gradients go back the same way."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, send: list[int], receive: list[int], group: Group
    ) -> Tensor:
        ctx.way = receive, send, group
        return group.exchange(rows.contiguous(), send, receive)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        send, receive, group = ctx.way
        return group.exchange(grad.contiguous(), send, receive), None, None, None


class Balance:
    """Equal loads of experts, by the auxiliary loss and each router's bias."""

    def __init__(
        self, stages: list[Stage], mesh: Mesh, config: TrainConfig, loss_scale: Callable[[], float]
    ) -> None:
        self.mixtures = [mixture for stage in stages for mixture in stage_mixtures(stage)]
        self.rate = config.moe_router_bias_update_rate
        self.groups = [axis.group for axis in (mesh.states, mesh.tp) if axis.group is not None]
        coefficient = config.moe_aux_loss_coeff / config.gas
        for mixture in self.mixtures:
            bias, device = mixture.router.bias, mixture.router.weight.device
            mixture.router.bias = torch.zeros_like(bias, device=device)  # so far without storage
            if self.rate:
                mixture.loads = torch.zeros_like(bias, dtype=torch.int64, device=device)
            if coefficient:
                mixture.loss_weight = lambda: coefficient * loss_scale()

    def update(self, done: bool) -> None:
        """Raise the bias of experts with fewer tokens than the mean in this step, lower the
        others'; if the step was ``done``, not skipped."""
        loads = [mixture.loads for mixture in self.mixtures if mixture.loads is not None]
        if not loads:
            return
        every = torch.stack(loads)
        for group in self.groups:
            group.all_reduce(every, "routing")
        lacking = every.double().mean(-1, keepdim=True) - every
        for mixture, own, lack in zip(self.mixtures, loads, lacking, strict=True):
            own.zero_()
            if done:
                mixture.router.bias += self.rate * lack.sign().to(mixture.router.bias.dtype)
