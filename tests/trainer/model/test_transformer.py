"""The model's formulas against an independent form of them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from support.models import GPT, LLAMA, MODELS, whole
from trainer.config import ModelConfig
from trainer.model.transformer import Stage


def tokens(model: ModelConfig, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(model.vocab_size, (batch, model.seq_length), generator=generator)


def slow_logits(stage: Stage, batch: Tensor) -> Tensor:
    """The model once more, one sequence and one head at a time, from the papers' formulas."""
    model = stage.model
    weights = dict(stage.named_parameters())
    kv_size, head = model.kv_heads * model.head_dim, model.head_dim
    mask = torch.full((model.seq_length, model.seq_length), -math.inf).triu(1)

    def norm(x: Tensor, name: str) -> Tensor:
        if model.norm == "layernorm":
            x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"]
        return x + weights[f"{name}.bias"] if model.norm == "layernorm" else x

    def linear(x: Tensor, name: str) -> Tensor:
        y = x @ weights[f"{name}.weight"].T
        return y + weights[f"{name}.bias"] if model.linear_bias else y

    def turn(x: Tensor) -> Tensor:
        if model.positions != "rotary":
            return x
        exponent = torch.arange(head // 2) * 2 / head
        angle = torch.arange(model.seq_length)[:, None] / model.rope_theta**exponent
        turned = torch.complex(x[:, : head // 2], x[:, head // 2 :]) * torch.polar(
            torch.ones_like(angle), angle
        )
        return torch.cat((turned.real, turned.imag), -1)

    logits = []
    for sequence in batch:
        x = weights["embedding.weight"][sequence]
        if model.positions == "learned":
            x = x + weights["positions.weight"]
        for layer in range(model.num_layers):
            block = f"blocks.{layer}"
            qkv = linear(norm(x, f"{block}.attention_norm"), f"{block}.attention.qkv")
            q, k, v = qkv.split((model.hidden_size, kv_size, kv_size), -1)
            heads = []
            for number in range(model.num_heads):
                group = number // (model.num_heads // model.kv_heads)
                one = turn(q[:, number * head : (number + 1) * head])
                other = turn(k[:, group * head : (group + 1) * head])
                scores = (one @ other.T / math.sqrt(head) + mask).softmax(-1)
                heads.append(scores @ v[:, group * head : (group + 1) * head])
            x = x + linear(torch.cat(heads, -1), f"{block}.attention.out")
            up = linear(norm(x, f"{block}.mlp_norm"), f"{block}.mlp.up")
            if model.activation == "swiglu":
                gate, value = up.chunk(2, -1)
                up = gate * gate.sigmoid() * value
            else:
                cubic = math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)
                up = 0.5 * up * (1 + cubic.tanh())
            x = x + linear(up, f"{block}.mlp.down")
        last = "embedding.weight" if model.tied_embeddings else "head.weight"
        logits.append(norm(x, "norm") @ weights[last].T)
    return torch.stack(logits, dim=1)


@pytest.mark.parametrize("model", MODELS)
def test_the_model_computes_the_papers_formulas(model: ModelConfig) -> None:
    stage = whole(model)
    with torch.no_grad():
        for parameter in stage.parameters():  # far from 0 and 1, so that each one matters
            parameter.add_(torch.randn(parameter.shape) * 0.3)
        torch.testing.assert_close(
            stage(tokens(model)), slow_logits(stage, tokens(model)), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("model", MODELS)
def test_a_later_token_changes_no_earlier_logit(model: ModelConfig) -> None:
    stage, before = whole(model), tokens(model)
    after = before.clone()
    after[:, 7] = (after[:, 7] + 1) % model.vocab_size
    with torch.no_grad():
        first, second = stage(before), stage(after)
    torch.testing.assert_close(first[:7], second[:7])
    assert not torch.allclose(first[7:], second[7:])


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputing_changes_no_gradient(recompute: str) -> None:
    gradients = []
    for mode in ("none", recompute):
        stage = whole(LLAMA, recompute=mode)
        stage(tokens(LLAMA)).square().sum().backward()
        gradients.append([parameter.grad for parameter in stage.parameters()])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again, rtol=0, atol=0)


def test_full_recompute_keeps_less_for_the_backward_pass() -> None:
    kept = {}
    for mode in ("none", "selective", "full"):
        stage, total = whole(GPT, recompute=mode), 0

        def keep(tensor: Tensor) -> Tensor:
            nonlocal total
            total += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            stage(tokens(GPT))
        kept[mode] = total
    assert kept["full"] < kept["selective"] < kept["none"]


def test_parameters_are_counted_exactly() -> None:
    choices = itertools.product(
        ("layernorm", "rmsnorm"),
        ("learned", "rotary"),
        ("gelu", "swiglu"),
        (True, False),
        (True, False),
        (None, 2),
    )
    for norm, positions, activation, bias, tied, kv_heads in choices:
        model = ModelConfig(
            num_layers=2,
            hidden_size=24,
            num_heads=6,
            num_kv_heads=kv_heads,
            vocab_size=30,
            seq_length=10,
            norm=norm,
            positions=positions,
            activation=activation,
            linear_bias=bias,
            tied_embeddings=tied,
        )
        with torch.device("meta"):
            counted = sum(p.numel() for p in Stage(model).parameters())
        assert counted == model.num_parameters, model
