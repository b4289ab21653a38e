"""A mixture of experts against a plain loop over tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.attention import Places
from trainer.model.experts import MixtureMlp
from trainer.model.initialize import initialize
from trainer.model.transformer import Block, LayerOptions, feed_forward, rotary_table
from trainer.plan.model import ModelConfig

SHAPE: dict[str, Any] = {
    "num_layers": 1, "hidden_size": 16, "num_heads": 2, "vocab_size": 8, "seq_length": 10,
    "norm": "rmsnorm", "positions": "rotary", "linear_bias": False, "num_experts": 4,
    "experts_per_token": 2, "expert_ffn_hidden_size": 8,
}  # fmt: skip
MODELS = {
    "softmax": {"activation": "swiglu"},
    "sigmoid, shared": {"router_score": "sigmoid", "shared_ffn_hidden_size": 12},
    "rows of no 16 bytes": {"activation": "swiglu", "expert_ffn_hidden_size": 7},
    "all experts": {"experts_per_token": 4, "router_score": "sigmoid"},
    "best two of groups": {
        "router_score": "sigmoid", "num_experts": 6, "n_group": 3, "topk_group": 1,
        "routed_scaling_factor": 2.5,
    },
    "best of groups, gated": {
        "num_experts": 6, "n_group": 2, "topk_group": 1, "norm_topk_prob": False,
        "shared_ffn_hidden_size": 12, "shared_expert_gate": True,
    },
}  # fmt: skip


def made(changes: dict[str, Any], dtype: torch.dtype) -> MixtureMlp:
    model = ModelConfig(**{**SHAPE, **changes})
    mixture = feed_forward(model, 0)
    initialize(mixture, "blocks.0.mlp", model, 3)
    with torch.no_grad():
        for parameter in mixture.parameters():
            parameter.mul_(20)  # so that every expert shows
        mixture.router.bias[0], mixture.router.bias[-1] = 0.3, -0.3
    return mixture.to(dtype)


def by_token(mixture: MixtureMlp, x: Tensor) -> Tensor:
    """One token after another, in float64; the bias counts for the choice alone."""
    router, experts = mixture.router, mixture.experts
    ups, downs = (
        stacked.weight.double().view(router.weight.size(0), stacked.out_size, -1)
        for stacked in (experts.up, experts.down)
    )
    found = []
    for token in x.double().flatten(0, 1):
        scores = router.weight.double() @ token
        scores = scores.softmax(0) if router.softmax else scores.sigmoid()
        choice = scores + router.bias.double()
        if router.groups > 1:
            groups = choice.view(router.groups, -1).clone()
            best = groups.max(1).values if router.softmax else groups.sort(1).values[:, -2:].sum(1)
            groups[best.argsort()[: -router.best_groups]] = -torch.inf
            choice = groups.flatten()
        chosen = choice.argsort(descending=True)[: mixture.per_token]
        total = torch.zeros_like(token)
        for expert in chosen:
            inner = ups[expert] @ token
            if experts.gated:
                gate, inner = inner.chunk(2)
                inner = F.silu(gate) * inner
            else:
                inner = F.gelu(inner, approximate="tanh")
            share = scores[expert] / (scores[chosen].sum() if mixture.normalizes else 1.0)
            total = total + share * mixture.scaling * (downs[expert] @ inner)
        found.append(total)
    out = torch.stack(found).view_as(x)
    if mixture.shared is not None:
        up, down = mixture.shared.up.weight.double(), mixture.shared.down.weight.double()
        shared = F.gelu(x.double() @ up.t(), approximate="tanh") @ down.t()
        if mixture.gate is not None:
            shared = shared * (x.double() @ mixture.gate.weight.double().t()).sigmoid()
        out = out + shared
    return out


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("dtype", "exact"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
def test_tokens_meet_their_experts_and_no_other(
    name: str, dtype: torch.dtype, exact: float
) -> None:
    mixture = made(MODELS[name], dtype)
    if mixture.gate is not None or mixture.scaling != 1:
        exact *= 1.5  # one more factor is rounded
    x = torch.randn(10, 3, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    x.requires_grad_()
    wanted = [x, *mixture.parameters()]
    found, expected = mixture(x), by_token(mixture, x)
    seed = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(expected)
    ours = torch.autograd.grad(found, wanted, seed.to(dtype))
    theirs = torch.autograd.grad(expected, wanted, seed)
    for one, other in zip([found, *ours], [expected, *theirs], strict=True):
        error = (one.double() - other.double()).abs().max() / other.double().abs().max()
        assert error < exact


def test_a_recomputed_layer_takes_the_routes_of_its_forward_pass() -> None:
    """Even where it would now decide otherwise, and counts no token twice."""
    model = ModelConfig(**SHAPE)
    gradients = []
    for recompute in ("none", "full"):
        block = Block(model, LayerOptions(recompute))  # type: ignore[arg-type]
        initialize(block, "blocks.0.", model, 3)
        assert isinstance(block.mlp, MixtureMlp)
        block.mlp.loads = torch.zeros(4, dtype=torch.int64)
        x = torch.randn(10, 2, 16, generator=torch.Generator().manual_seed(2)).requires_grad_()
        out = block(x, Places(rotary_table(model, x), None))
        block.mlp.router.bias += torch.tensor([9.0, 9.0, 0.0, 0.0])
        out.square().sum().backward()
        assert block.mlp.loads.sum() == 2 * 10 * 2
        gradients.append([x.grad, *(parameter.grad for parameter in block.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


class _Careless(torch.autograd.Function):
    """``grouped_mm`` as some GPUs have it: an empty group's gradient is what was in memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, ends)
        return _OWN(x, weight, offs=ends)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, ends = ctx.saved_tensors
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
        with torch.enable_grad():
            y = _OWN(x, weight, offs=ends)
        of_x, of_weight = torch.autograd.grad(y, (x, weight), grad)
        empty = ends.diff(prepend=ends.new_zeros(1)) == 0
        return of_x, of_weight.masked_fill(empty[:, None, None], torch.nan), None


_OWN = F.grouped_mm


def test_an_expert_without_tokens_gets_zeros_where_the_gpus_kernel_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experts = made({"activation": "swiglu"}, torch.float32).experts
    counts = torch.tensor([3, 0, 5, 0])
    torch.manual_seed(1)
    x = torch.randn(8, SHAPE["hidden_size"])
    found = []
    for careless in (False, True):
        if careless:
            kernel = lambda x, weight, offs: _Careless.apply(x, weight, offs)  # noqa: E731
            monkeypatch.setattr("trainer.model.experts.F.grouped_mm", kernel)
        experts.zero_grad()
        experts(x, counts).square().sum().backward()
        found.append([p.grad.clone() for p in experts.parameters()])
    for exact, careless in zip(*found, strict=True):
        assert torch.equal(exact, careless) and not careless.isnan().any()
        assert exact.view(4, -1, exact.size(1))[[1, 3]].count_nonzero() == 0
