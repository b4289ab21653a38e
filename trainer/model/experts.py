"""A mixture of experts in place of a layer's feed-forward part (Shazeer et al. 2017).

A router sends each token to some of the experts, and no token is dropped. Routed tokens are sorted
by expert, so that experts are one grouped product. Gradients are gathered as well: nothing is added
by atomics, and equal routes give equal bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.model.linear import Linear, activated
from trainer.plan.model import ModelConfig
from trainer.plan.sizes import Mixture

_GROUPED_ALIGNMENT = 16  # Bytes; ``grouped_mm`` takes rows of whole multiples only


class Routes(NamedTuple):
    """Experts that a rank's tokens go to."""

    chosen: Tensor  # (tokens, experts per token)
    order: Tensor  # pairs of token and expert, sorted by expert
    inverse: Tensor  # place of each pair in that order
    counts: Tensor  # tokens of each expert, int64
    plan: Any  # see ``Dispatch.plan``
    share: Tensor | None
    """Share of each sequence's choices, (batch, experts), if there is an auxiliary loss."""


class Dispatch:
    """How sorted tokens reach their experts: here, all are on this rank."""

    tensor_ranks = 1
    """Ranks with parts of a sequence whose gradients are summed, not averaged."""

    def plan(self, counts: Tensor) -> Any:
        """Facts of other ranks that ``compute`` needs; ``counts`` as in ``Routes``."""

    def compute(self, experts: Callable[..., Tensor], rows: Tensor, routes: Routes) -> Tensor:
        """Experts' outputs for tokens sorted by expert, in their order."""
        return experts(rows, routes.counts)

    def sum_counts(self, counts: Tensor) -> None:
        """Sum counts in place over the ranks that have parts of the same sequences."""


class _Used(torch.autograd.Function):
    """Matrices of experts; one without tokens gets a gradient of zeros.

    torch's kernels leave it uninitialized on Blackwell and on AMD (pytorch #172439, #174314).
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, counts: Tensor) -> Tensor:
        ctx.save_for_backward(counts)
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (counts,) = ctx.saved_tensors
        return grad.masked_fill((counts == 0)[:, None, None], 0.0), None


class Stacked(nn.Module):
    """Matrices of several experts, their rows stacked expert by expert."""

    def __init__(self, experts: int, in_size: int, out_size: int) -> None:
        super().__init__()
        self.out_size = out_size
        self.weight = nn.Parameter(torch.empty(experts * out_size, in_size))

    def product(self, x: Tensor, counts: Tensor) -> Tensor:
        """x W^T of each expert, whose ``counts`` rows of x follow each other."""
        weight = self.weight.view(-1, self.out_size, self.weight.size(1))
        widths = (n * x.element_size() % _GROUPED_ALIGNMENT for n in weight.shape[1:])
        if x.dtype == torch.float64 or any(widths) or x.size(0) == 0:
            parts = zip(x.split(counts.tolist()), weight, strict=True)
            return torch.cat([F.linear(part, own) for part, own in parts])
        ends = counts.cumsum(0).to(torch.int32)
        used: Tensor = _Used.apply(weight, counts)
        return F.grouped_mm(x, used.transpose(-2, -1), offs=ends)


class Experts(nn.Module):
    """The routed experts of a layer on this rank."""

    def __init__(self, model: ModelConfig, mixture: Mixture) -> None:
        super().__init__()
        self.gated = model.gated
        count, size = mixture.num_experts, mixture.expert_ffn_size
        self.up = Stacked(count, model.hidden_size, size * (2 if self.gated else 1))
        self.down = Stacked(count, size, model.hidden_size)

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        return self.down.product(activated(self.up.product(x, counts), self.gated), counts)


class Router(nn.Module):
    """Scores of experts, in float32 at least.

    ``bias`` counts where experts are chosen, not in a token's weights (DeepSeek-AI 2024, arXiv
    2412.19437, section 2.1.2).
    """

    bias: Tensor

    def __init__(self, model: ModelConfig, mixture: Mixture) -> None:
        super().__init__()
        self.softmax = model.router_score == "softmax"
        self.groups, self.best_groups = model.n_group, min(model.topk_group, model.n_group)
        self.weight = nn.Parameter(torch.empty(mixture.num_experts, model.hidden_size))
        self.register_buffer("bias", torch.zeros(mixture.num_experts))

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        scores = F.linear(x.to(wide), self.weight.to(wide))
        return scores.softmax(-1) if self.softmax else scores.sigmoid()

    def choose(self, scores: Tensor, count: int) -> Tensor:
        """Each token's experts: the highest scores plus biases, in its best groups if there are
        any. A group scores as its best expert or, with sigmoid, as the sum of its best two."""
        scores = scores + self.bias.to(scores.dtype)
        if self.groups > 1:
            grouped = scores.unflatten(-1, (self.groups, -1))
            worth = grouped.topk(1 if self.softmax else 2).values.sum(-1)
            best = worth.topk(self.best_groups).indices
            others = torch.ones_like(worth, dtype=torch.bool).scatter(-1, best, False)
            scores = grouped.masked_fill(others[..., None], -torch.inf).flatten(-2)
        return scores.topk(count).indices


class MixtureMlp(nn.Module):
    """Routed experts, and a ``shared`` part that every token takes, if there is one.

    Attributes:
        loss_weight: weight of the auxiliary loss in a micro-batch's gradients; None: no such loss.
        loads: sum of each expert's tokens over forward passes with gradients; None: not counted.
    """

    def __init__(self, model: ModelConfig, mixture: Mixture, shared: nn.Module | None) -> None:
        super().__init__()
        self.per_token = mixture.experts_per_token
        self.router = Router(model, mixture)
        self.experts = Experts(model, mixture)
        self.normalizes, self.scaling = model.norm_topk_prob, model.routed_scaling_factor
        self.shared = shared
        gate = shared is not None and model.shared_expert_gate
        self.gate = Linear(model.hidden_size, (1,), False) if gate else None
        self.dispatch = Dispatch()
        self.loss_weight: Callable[[], float] | None = None
        self.loads: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        scores = self.router(tokens)
        experts: Callable[..., Tensor] = self.experts
        if _pass.again:
            routes = _pass.routes[0]
            experts = self._gathered
        else:
            routes = self._routes(scores, x.size(1))
            _pass.routes[:] = [routes]
        if routes.share is not None and self.loss_weight is not None:
            loss = self._balance(scores, routes.share)
            scores = _AddLoss.apply(scores, loss, self.loss_weight())
        weights = scores.gather(-1, routes.chosen)
        if self.normalizes:
            weights = weights / weights.sum(-1, keepdim=True)
        if self.scaling != 1:
            weights = weights * self.scaling
        rows = Permute.apply(tokens, routes.order, routes.inverse, self.per_token)
        rows = self.dispatch.compute(experts, rows, routes)
        rows = Permute.apply(rows, routes.inverse, routes.order, 1)
        rows = rows.view(-1, self.per_token, x.size(-1)) * weights[..., None].to(x.dtype)
        out = rows.sum(1).view_as(x)
        if self.shared is None:
            return out
        shared = self.shared(x)
        return out + (shared if self.gate is None else self.gate(x).sigmoid() * shared)

    def _gathered(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Experts in a recomputed pass: FSDP2's weights stay for the gradients that follow."""
        unshard: Callable[[], None] | None = getattr(self.experts, "unshard", None)
        if unshard is not None:
            unshard()
        return self.experts.forward(rows, counts)

    def _routes(self, scores: Tensor, batch: int) -> Routes:
        """Choose each token's experts."""
        trains = scores.requires_grad
        with torch.no_grad():
            chosen = self.router.choose(scores, self.per_token)
            order = chosen.flatten().argsort(stable=True)
            counts = _counts(chosen.flatten(), scores.size(-1))
            if self.loads is not None and trains:
                self.loads += counts
            share = None
            if self.loss_weight is not None and trains:
                share = self._share(chosen, batch).to(scores.dtype)
        return Routes(chosen, order, inverse_of(order), counts, self.dispatch.plan(counts), share)

    def _share(self, chosen: Tensor, batch: int) -> Tensor:
        """Share of each sequence's choices that go to each expert, (batch, experts)."""
        experts = self.router.weight.size(0)
        sequence = torch.arange(batch, device=chosen.device)[:, None] * experts
        numbers = chosen.view(-1, batch, self.per_token) + sequence
        counts = _counts(numbers.flatten(), batch * experts).view(batch, experts)
        self.dispatch.sum_counts(counts)
        return counts / counts.sum(-1, keepdim=True)

    def _balance(self, scores: Tensor, share: Tensor) -> Tensor:
        """This rank's part of the auxiliary loss, which is 1 if all experts have equal loads.

        The mean over sequences of E sum_e f_e P_e, where f is an expert's share of a sequence's
        choices and P the mean of its normalized scores (DeepSeek-AI 2024, section 2.1.2). A mean
        over a whole micro-batch would differ between layouts.
        """
        means = scores / scores.sum(-1, keepdim=True)
        sums = means.view(-1, *share.shape).sum(0)
        tokens = scores.size(0) * self.dispatch.tensor_ranks
        return share.size(1) * (share * sums).sum() / tokens


def stage_mixtures(stage: nn.Module) -> list[MixtureMlp]:
    """The mixtures of a stage, in the order of its layers."""
    return [module for module in stage.modules() if isinstance(module, MixtureMlp)]


class _Pass(threading.local):
    """The forward pass of a layer that this thread is in, and its routes once they are chosen."""

    def __init__(self) -> None:
        self.again = False
        self.routes: list[Routes] = []


_pass = _Pass()


def kept_routes() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts of a layer's forward pass and of its recomputation, which takes the same routes."""
    routes: list[Routes] = []
    return _in_pass(routes, False), _in_pass(routes, True)


@contextmanager
def _in_pass(routes: list[Routes], again: bool) -> Iterator[None]:
    before = _pass.routes, _pass.again
    _pass.routes, _pass.again = routes, again
    try:
        yield
    finally:
        _pass.routes, _pass.again = before


def inverse_of(order: Tensor) -> Tensor:
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel(), device=order.device)
    return inverse


def _counts(numbers: Tensor, kinds: int) -> Tensor:
    """How often each number below ``kinds`` occurs; the host does not wait for it."""
    counts = torch.zeros(kinds, dtype=torch.int64, device=numbers.device)
    return counts.scatter_add_(0, numbers, torch.ones_like(numbers))


class Permute(torch.autograd.Function):
    """Rows, each repeated ``times`` times, in another order; ``inverse`` undoes the order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor, times: int) -> Tensor:
        ctx.inverse, ctx.times = inverse, times
        return x[order // times if times > 1 else order]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows = grad[ctx.inverse]
        if ctx.times > 1:
            rows = rows.view(-1, ctx.times, grad.size(-1)).sum(1)
        return rows, None, None, None


class _AddLoss(torch.autograd.Function):
    """Returns scores unchanged; the backward pass adds the gradient of a loss, times its weight.

    Most pipeline stages have no loss of their own that it could be added to.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, loss: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return scores.view_as(scores)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad, grad.new_tensor(ctx.weight), None
