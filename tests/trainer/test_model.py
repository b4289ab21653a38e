"""The model's formulas, its first weights and its loss, each against an independent form."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.config import ConfigError, ModelConfig
from trainer.model import initialize as initialization
from trainer.model.initialize import initialize
from trainer.model.parameters import slots
from trainer.model.precision import LossScaler
from trainer.model.transformer import Stage
from trainer.parallel import tensor as tensor_parallel
from trainer.parallel.loss import cross_entropy
from trainer.runtime.device import Device
from trainer.zero.buckets import fill

GPT = ModelConfig(num_layers=4, hidden_size=24, num_heads=6, vocab_size=40, seq_length=12)
LLAMA = ModelConfig(
    num_layers=4,
    hidden_size=48,
    num_heads=6,
    num_kv_heads=2,
    ffn_hidden_size=64,
    vocab_size=40,
    seq_length=12,
    norm="rmsnorm",
    positions="rotary",
    activation="swiglu",
    linear_bias=False,
    tied_embeddings=False,
)
MODELS = [pytest.param(GPT, id="gpt"), pytest.param(LLAMA, id="llama")]


def whole(model: ModelConfig, **options: Any) -> Stage:
    stage = Stage(model, **options)
    initialize(stage, "", model, seed=3)
    return stage


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


@pytest.mark.parametrize("num_stages", [2, 4])
@pytest.mark.parametrize("model", MODELS)
def test_pipeline_stages_start_with_the_whole_models_weights(
    model: ModelConfig, num_stages: int
) -> None:
    expected = dict(whole(model).named_parameters())
    if model.tied_embeddings:
        expected["head.weight"] = expected["embedding.weight"]
    found: dict[str, Tensor] = {}
    for index in range(num_stages):
        found |= dict(whole(model, index=index, num_stages=num_stages).named_parameters())
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=0)


@pytest.mark.parametrize("draw_elements", [1, 100, 1 << 20])
@pytest.mark.parametrize("model", MODELS)
def test_tensor_parallel_ranks_start_with_parts_of_the_whole_models_weights(
    model: ModelConfig, draw_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initialization, "_DRAW_ELEMENTS", draw_elements)
    tp = 2
    split = [
        ("qkv", tensor_parallel.ColumnParallel),
        ("up", tensor_parallel.ColumnParallel),
        ("out", tensor_parallel.RowParallel),
        ("down", tensor_parallel.RowParallel),
        ("embedding", tensor_parallel.VocabParallelEmbedding),
    ]
    ranks = []
    for rank in range(tp):
        with torch.device("meta"):
            stage = Stage(model)
            for (end, style), (path, module) in itertools.product(split, stage.named_modules()):
                if path.split(".")[-1] == end:
                    tensor_parallel.split(module, style.dims, tp)
        stage.to_empty(device="cpu")
        initialize(stage, "", model, seed=3, tp_rank=rank, tp=tp)
        ranks.append(stage)
    expected = whole(model)
    for path, module in expected.named_modules():
        copies = [rank.get_submodule(path) for rank in ranks]
        for name, value in module.named_parameters(recurse=False):
            dim = getattr(copies[0], "tp_split", {}).get(name)
            pieces = [getattr(copy, name) for copy in copies]
            if dim is None:
                joined = pieces[0]
            elif dim == 1:
                joined = torch.cat(pieces, 1)
            else:
                parts = getattr(module, "parts", (value.size(0),))
                by_part = [piece.split([p // tp for p in parts]) for piece in pieces]
                joined = torch.cat([torch.cat(part) for part in zip(*by_part, strict=True)])
            torch.testing.assert_close(joined, value, rtol=0, atol=0, msg=f"{path}.{name}")


def test_first_weights_have_the_deviation_of_gpt_2_and_depend_on_seed_and_name() -> None:
    model = GPT.model_copy(update={"hidden_size": 96})
    stage, other = whole(model), Stage(model)
    initialize(other, "", model, seed=4)
    blocks = stage.blocks
    assert blocks["0"].mlp.up.weight.std().item() == pytest.approx(0.02, rel=0.05)
    residual = 0.02 / math.sqrt(2 * model.num_layers)
    assert blocks["0"].mlp.down.weight.std().item() == pytest.approx(residual, rel=0.05)
    assert abs(blocks["0"].mlp.up.weight.mean().item()) < 1e-3
    assert not torch.equal(blocks["0"].mlp.up.weight, blocks["1"].mlp.up.weight)
    assert not torch.equal(blocks["0"].mlp.up.weight, other.blocks["0"].mlp.up.weight)
    assert blocks["0"].mlp_norm.weight.eq(1).all()
    assert blocks["0"].mlp.up.bias.eq(0).all()


def test_the_loss_is_cross_entropy_with_its_gradient() -> None:
    logits = (torch.randn(7, 2, 11) * 20).requires_grad_()
    targets = torch.randint(11, (2, 7))
    other = logits.detach().clone().requires_grad_()
    loss = cross_entropy(logits, targets, None)
    expected = F.cross_entropy(other.transpose(0, 1).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(loss, expected)
    (loss * 3).backward()
    (expected * 3).backward()
    torch.testing.assert_close(logits.grad, other.grad)


def test_weight_decay_spares_norms_and_biases() -> None:
    for stage in (whole(GPT), whole(LLAMA)):
        for slot in slots(stage, tp=1):
            vector = "norm" in type(slot.module).__name__.lower() or slot.name == "bias"
            assert slot.traits.decays == (not vector)


def test_buckets_hold_one_kind_and_no_more_than_the_limit() -> None:
    with torch.device("meta"):
        members = list(slots(Stage(GPT), tp=1))
    buckets = fill(members, limit=2000)
    assert sorted(id(s.module) for b in buckets for s in b) == sorted(id(s.module) for s in members)
    assert len(buckets) > 3
    for bucket in buckets:
        assert len({slot.traits for slot in bucket}) == 1
        assert len(bucket) == 1 or sum(s.parameter.numel() for s in bucket) <= 2000


def test_the_loss_scale_halves_at_an_overflow_and_doubles_after_good_steps() -> None:
    scaler = LossScaler("fp16", initial=8.0, interval=2)
    assert [scaler.update(finite) for finite in (False, True, True, True)] == [
        False,
        True,
        True,
        True,
    ]
    assert scaler.scale == 8.0
    assert LossScaler("bf16").scale == 1.0
    assert LossScaler("fp32").update(finite=False)


def test_ranks_that_share_a_machine_get_one_thread_each() -> None:
    threads = torch.get_num_threads()
    try:
        Device("cpu", local_rank=0, local_world_size=10_000)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator")
def test_asking_for_an_accelerator_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="set device: cpu"):
        Device("cuda")
    assert Device("auto").type == "cpu"
