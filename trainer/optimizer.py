"""AdamW on this rank's float32 weights, with global gradient clipping and loss scaling."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.model.precision import LossScaler
from trainer.parallel.mesh import Mesh
from trainer.plan.sections import OptimizerConfig
from trainer.plan.shards import ROW
from trainer.runtime.phase import phase
from trainer.zero.buckets import WholeWeights
from trainer.zero.fsdp import ShardedWeights

Weights = WholeWeights | ShardedWeights  # data-parallel methods, with the same interface


@dataclass(frozen=True)
class StepReport:
    """Result of one optimizer step; the same on every rank, except ``aside_s``."""

    loss: float
    grad_norm: float  # global 2-norm before clipping; not finite if the step was skipped
    done: bool
    stop: bool = False  # whether a rank was asked to stop
    aside_s: float = 0.0  # seconds that this rank spent on work that is not training

    @property
    def diverged(self) -> bool:
        """Whether the loss, or what the step made of the weights, is not finite."""
        return not math.isfinite(self.loss) or (self.done and not math.isfinite(self.grad_norm))


class Totals(NamedTuple):
    """Global sums in float64."""

    squares: Tensor  # the squared gradient norm
    loss: Tensor  # sum of token losses, divided by the number of all tokens
    share: Tensor  # share of tokens that are in the loss; 0 if none is
    asked: Tensor  # ranks that were asked to stop


class Optimizer:
    """Turns finished gradients into updated weights.

    One all-reduce per step carries gradient norm and loss. Clipping factor and loss scale go into
    the fused update, so that gradients are not read again.
    """

    def __init__(
        self, weights: Weights, config: OptimizerConfig, mesh: Mesh, scaler: LossScaler
    ) -> None:
        self.weights = weights
        self.clip = config.grad_clip
        self.scaler = scaler
        self.world = mesh.world
        self.counted = [
            master
            for traits, masters in weights.masters.items()
            if not traits.copy and mesh.is_first_holder(traits.split)
            if mesh.holders(traits.split).counts  # one of the ranks with equal masters does
            for master in masters
        ]
        # Ranks along gz have the losses of different sequences.
        counts_loss = mesh.is_last and mesh.is_first_holder(("gz",))
        self.loss_share = 1 / mesh.states.size if counts_loss else 0.0
        groups = [
            {"params": masters, "weight_decay": config.weight_decay if traits.decays else 0.0}
            for traits, masters in weights.masters.items()
        ]
        self.adamw: torch.optim.AdamW | None = None
        if groups:  # a rank with empty shares has none, but takes part in the sums
            betas = (config.beta1, config.beta2)
            self.adamw = torch.optim.AdamW(
                groups, lr=config.lr, betas=betas, eps=config.eps, fused=True
            )

    def set_lr(self, lr: float) -> None:
        if self.adamw is not None:
            for group in self.adamw.param_groups:
                group["lr"] = lr

    def step(
        self, loss: Tensor, counted: Tensor | None = None, stop: bool | None = None
    ) -> StepReport:
        """Update the weights.

        ``loss``: this rank's mean over its micro-batches, if ``loss_share`` is not 0; ``counted``:
        likewise the fraction of tokens in the loss, default all. Loss and gradients are means over
        the whole job. ``stop``: whether this rank was asked to stop; None if ranks never are.
        """
        self.weights.finish_gradients()
        totals = self.totals(loss, counted, stop)
        phase.name = "optimizer"
        # If no token of a batch is in the loss, loss and gradients are already 0.
        share = torch.where(totals.share > 0, totals.share, 1.0)
        scale = self.scaler.scale * share  # of loss and gradients, until the update
        norm = totals.squares.sqrt() / scale
        if self.adamw is not None:
            factor = torch.ones_like(norm)
            if self.clip > 0:
                factor = (self.clip / (norm + 1e-6)).clamp(max=1.0)
            self.adamw.grad_scale = (scale / factor).float()
            if self.scaler.enabled:
                self.adamw.found_inf = (~norm.isfinite()).float()
            self.adamw.step()
        self.weights.publish()
        numbers = torch.stack((norm, totals.loss / share, totals.asked)).tolist()
        grad_norm, reported, asked = numbers
        done = self.scaler.update(math.isfinite(grad_norm))
        return StepReport(reported, grad_norm, done, asked > 0)

    def totals(
        self, loss: Tensor, counted: Tensor | None, stop: bool | None = None, with_norm: bool = True
    ) -> Totals:
        """Sums over the whole job, in float64, by one all-reduce; see ``step``."""
        nothing = torch.zeros((), dtype=torch.float64, device=loss.device)
        grads = [master.grad for master in self.counted if master.grad is not None]
        squares = squared_norm(grads) if grads and with_norm else nothing
        own = {"squares": squares, "loss": loss.double() * self.loss_share}
        if counted is not None:  # else all ranks know that it is 1
            own["share"] = counted.double() * self.loss_share
        if stop is not None:
            own["asked"] = nothing + float(stop)
        sums = torch.stack([*own.values()])
        if self.world.size > 1:
            self.world.all_reduce(sums, "totals")
        known = {"share": nothing + 1.0, "asked": nothing}
        return Totals(**{**known, **dict(zip(own, sums, strict=True))})


def squared_norm(grads: Sequence[Tensor]) -> Tensor:
    """Squared 2-norm of all gradients together, in float64."""
    if grads[0].device.type == "cpu":
        norms = torch.cat([norm for grad in grads for norm in _row_norms(grad)])
    else:
        norms = torch.stack(torch._foreach_norm(grads))
    return norms.double().square().sum()


def _row_norms(grad: Tensor) -> Iterator[Tensor]:
    """Norms of parts: on CPU a float32 norm of 16 million numbers at once is wrong by 1e-3."""
    flat = grad.view(-1)
    whole = flat.numel() // ROW * ROW
    if whole:
        yield torch.linalg.vector_norm(flat[:whole].view(-1, ROW), dim=-1)
    if whole < flat.numel():
        yield torch.linalg.vector_norm(flat[whole:]).view(1)
