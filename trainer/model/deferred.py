"""Weight gradients computed later than input gradients (Qi et al. 2023, "Zero Bubble").

A pipeline stage waits only for its output's gradient, so the products of weight gradients can fill
idle time at the end of a step. Before that, deferred products hide the all-reduce of input
gradients over tensor-parallel ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from trainer.model.kernels import Bias, Kernels
from trainer.model.linear import Linear
from trainer.model.transformer import Head, Stage

Receive = Callable[[nn.Parameter, Tensor], None]


class DeferredKernels(Kernels):
    """Products of layers; those for weight gradients wait until they are asked for."""

    own_gradients = True
    receive: Receive

    def __init__(self, inner: Kernels) -> None:
        self.inner = inner
        self.waiting: deque[Callable[[], None]] = deque()
        """Weight gradients that the current backward pass has deferred."""
        self.passes: deque[deque[Callable[[], None]]] = deque()
        """Weight gradients of earlier backward passes, oldest first."""
        self.forwards_left = 0
        """Forward passes through this rank's stages that the step still has."""

    def take_over(self, stages: Iterable[Stage], receive: Receive) -> None:
        """Take the weights of products out of autograd; ``receive`` gets each gradient.

        The output layer's weights stay in autograd if it computes the loss by chunks.
        """
        self.receive = receive
        for stage in stages:
            kinds = (Linear,) if stage.options.chunked_loss else (Linear, Head)
            for module in stage.modules():
                if isinstance(module, kinds) and module.weight is not None:
                    module.weight.requires_grad_(False)

    def outputs(self, x: Tensor, weight: Tensor, bias: Bias = None) -> Tensor:
        return self.inner.outputs(x, weight, bias)

    def input_gradient(self, grad: Tensor, weight: Tensor) -> Tensor:
        return self.inner.input_gradient(grad, weight)

    def weight_gradient(self, grad: Tensor, x: Tensor, weight: nn.Parameter) -> None:
        self.waiting.append(
            lambda: self.receive(weight, self.inner.weight_gradient(grad, x, weight))
        )

    def behind_sum(self, grad: Tensor, x: Tensor, weight: nn.Parameter) -> None:
        self.weight_gradient(grad, x, weight)
        if self.forwards_left:
            oldest = next(one for one in (*self.passes, self.waiting) if one)
            with torch.no_grad():
                oldest.popleft()()

    def taken(self) -> Callable[[], None]:
        """Take a backward pass's deferred gradients; the result computes those still waiting."""
        mine, self.waiting = self.waiting, deque()
        while self.passes and not self.passes[0]:
            self.passes.popleft()
        self.passes.append(mine)

        def compute() -> None:
            with torch.no_grad():
                while mine:
                    mine.popleft()()  # and let go of its activations

        return compute
