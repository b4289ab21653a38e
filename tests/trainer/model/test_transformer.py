"""The model's formulas against an independent form of them."""

from __future__ import annotations

import itertools
import math
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed._tools.mem_tracker import MemTracker

from support import expert_cases as cases
from support.models import GPT, LATENT, LLAMA, MODELS, whole
from trainer.model import attention, transformer
from trainer.model.transformer import LayerOptions, Stage
from trainer.plan.fields import Recompute
from trainer.plan.model import ModelConfig

# Two of four layers have windows, which end neither with the sequence nor with one another.
WINDOWS = LLAMA.model_copy(update={"windowed_layers": LLAMA.num_layers // 2, "window_size": 3})


def tokens(model: ModelConfig, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(model.vocab_size, (batch, model.seq_length), generator=generator)


class SlowModel:
    """The model once more, one sequence and one head at a time, from the papers' formulas."""

    def __init__(self, stage: Stage) -> None:
        self.model = stage.model
        self.weights = dict(stage.named_parameters())

    def norm(self, x: Tensor, name: str) -> Tensor:
        centred = self.model.norm == "layernorm"
        if centred:
            x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * self.weights[f"{name}.weight"]
        return x + self.weights[f"{name}.bias"] if centred else x

    def linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if self.model.linear_bias else y

    def turn(self, x: Tensor) -> Tensor:
        """Rotary positions, as products of complex numbers."""
        model, half = self.model, self.model.head_dim // 2
        if model.positions != "rotary":
            return x
        exponent = torch.arange(half) * 2 / model.head_dim
        angle = torch.arange(model.seq_length)[:, None] / model.rope_theta**exponent
        turn = torch.polar(torch.ones_like(angle), angle)
        turned = torch.complex(x[:, :half], x[:, half:]) * turn
        return torch.cat((turned.real, turned.imag), -1)

    def attention(self, x: Tensor, block: str) -> Tensor:
        model, head = self.model, self.model.head_dim
        kv_size = model.kv_heads * head
        mask = torch.full((model.seq_length, model.seq_length), -math.inf)
        windowed = model.windowed_layers and int(block.split(".")[1]) % 2 == 0
        mask = mask.triu(1) + (mask.tril(-model.window_size) if windowed else 0.0)
        qkv = self.linear(self.norm(x, f"{block}.attention_norm"), f"{block}.attention.qkv")
        q, k, v = qkv.split((model.hidden_size, kv_size, kv_size), -1)
        heads = []
        for number in range(model.num_heads):
            group = number // (model.num_heads // model.kv_heads)
            one = self.turn(q[:, number * head : (number + 1) * head])
            other = self.turn(k[:, group * head : (group + 1) * head])
            scores = (one @ other.T / math.sqrt(head) + mask).softmax(-1)
            heads.append(scores @ v[:, group * head : (group + 1) * head])
        return self.linear(torch.cat(heads, -1), f"{block}.attention.out")

    def mlp(self, x: Tensor, block: str) -> Tensor:
        up = self.linear(self.norm(x, f"{block}.mlp_norm"), f"{block}.mlp.up")
        if self.model.activation == "swiglu":
            gate, value = up.chunk(2, -1)
            up = gate * gate.sigmoid() * value
        else:
            cubic = math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)
            up = 0.5 * up * (1 + cubic.tanh())
        return self.linear(up, f"{block}.mlp.down")

    def logits(self, sequence: Tensor) -> Tensor:
        """(sequence, vocabulary) of one sequence of tokens."""
        x = self.weights["embedding.weight"][sequence]
        if self.model.positions == "learned":
            x = x + self.weights["positions.weight"]
        for layer in range(self.model.num_layers):
            x = x + self.attention(x, f"blocks.{layer}")
            x = x + self.mlp(x, f"blocks.{layer}")
        last = "embedding.weight" if self.model.tied_embeddings else "head.weight"
        return self.norm(x, "norm") @ self.weights[last].T


@pytest.mark.parametrize("model", [*MODELS, WINDOWS])
def test_the_model_computes_the_papers_formulas(model: ModelConfig) -> None:
    stage = whole(model)
    with torch.no_grad():
        for parameter in stage.parameters():  # far from 0 and 1, so that each one matters
            parameter.add_(torch.randn(parameter.shape) * 0.3)
        slow = SlowModel(stage)
        expected = torch.stack([slow.logits(sequence) for sequence in tokens(model)], dim=1)
        torch.testing.assert_close(stage(tokens(model)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_a_later_token_changes_no_earlier_logit(model: ModelConfig) -> None:
    stage, before = whole(model), tokens(model)
    after = before.clone()
    after[:, 7] = (after[:, 7] + 1) % model.vocab_size
    with torch.no_grad():
        first, second = stage(before), stage(after)
    torch.testing.assert_close(first[:7], second[:7])
    assert not torch.allclose(first[7:], second[7:])


@pytest.mark.parametrize("model", [LLAMA, WINDOWS, LATENT])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputing_changes_no_gradient(recompute: str, model: ModelConfig) -> None:
    # To the bit, but for sums of a CPU's RMSNorm and of repeated keys, in another order.
    tolerance = 1e-13 if recompute == "selective" or model.windowed_layers else 0.0
    gradients = []
    for mode in ("none", recompute):
        stage = whole(model, recompute=mode).double()
        stage(tokens(model)).square().sum().backward()
        gradients.append([parameter.grad for parameter in stage.parameters()])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again, rtol=tolerance, atol=tolerance)


def test_recomputing_keeps_less_for_the_backward_pass() -> None:
    kept = {
        (mode, every): activation_bytes(whole(LLAMA, recompute=mode, recompute_every=every))
        for mode, every in (("none", 1), ("selective", 1), ("selective", 2), ("full", 1))
    }
    everything = kept["none", 1]
    assert kept["full", 1] < kept["selective", 1] < 0.7 * everything
    assert kept["selective", 2] == (everything + kept["selective", 1]) / 2


def test_keys_that_two_blocks_of_a_window_see_are_kept_once() -> None:
    for mode in ("none", "selective"):
        kept = [activation_bytes(whole(model, recompute=mode)) for model in (WINDOWS, LLAMA)]
        assert kept[0] <= kept[1] + 4 * 2 * 3**2  # one mask, of so many keys for three queries


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_mask_of_documents_is_kept_once(dtype: torch.dtype) -> None:
    """In the number format of the queries: a boolean one would be turned into it in each layer."""
    stage = whole(LLAMA, masks_documents=True).to(dtype)
    masks = {}

    def note(kept: Tensor) -> Tensor:
        if kept.shape[-2:] == (LLAMA.seq_length, LLAMA.seq_length):
            masks[kept.untyped_storage().data_ptr()] = kept
        return kept

    with torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept):
        stage(tokens(LLAMA), torch.tensor([[0, 3, 12, 12], [0, 3, 12, 12]]))
    assert len(stage.blocks) > 1
    (mask,) = masks.values()
    assert mask.dtype == dtype and mask.numel() == 2 * LLAMA.seq_length**2


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("model", [GPT, LLAMA, LATENT], ids=["gpt", "grouped", "latent"])
def test_documents_one_after_another_are_those_under_a_mask(
    model: ModelConfig, recompute: Recompute
) -> None:
    torch.manual_seed(0)
    bounds = torch.tensor([[0, 2, 7, 12], [0, 12, 12, 12]], dtype=torch.int32)
    outputs, gradients = [], []
    for masks in (False, True):
        stage = whole(model, recompute=recompute, masks_documents=masks).double()
        own = F.scaled_dot_product_attention
        with mock.patch.object(F, "scaled_dot_product_attention", wraps=own) as attention:
            outputs.append(stage(tokens(model), bounds))
        shapes = {call.args[0].shape[2] for call in attention.call_args_list}
        assert shapes == ({12} if masks else {2, 5, 12})
        outputs[-1].square().sum().backward()
        gradients.append([parameter.grad for parameter in stage.parameters()])
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-13)
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_compiled_layers_take_any_number_of_documents_in_one_graph(recompute: Recompute) -> None:
    """With the operator of packed documents, on tensors without numbers."""
    own, graphs = torch.compile, []

    def counted(function: Any, **options: Any) -> Any:
        def backend(graph: Any, inputs: Any) -> Any:
            graphs.append(graph)
            return graph

        return own(function, backend=backend, **options)

    torch._dynamo.reset()
    transformer.compiled.cache_clear()
    with (
        mock.patch.object(torch, "compile", counted),
        mock.patch.object(attention, "_attend_in_turn", attention._attend_packed),
    ):
        options = LayerOptions(recompute, recompute_every=2, compiled=True)
        stage = Stage(LLAMA, options=options).to("meta")
        inputs = torch.empty(2, LLAMA.seq_length, dtype=torch.int64, device="meta")
        for size in (2, 4, 8, 16, 32, 64):
            bounds = torch.empty(2, size, dtype=torch.int32, device="meta")
            stage(inputs, bounds).sum().backward()
            with torch.no_grad():
                stage(inputs, bounds)
    transformer.compiled.cache_clear()
    kinds = 1 if recompute == "none" else 2
    assert len(graphs) == 2 * kinds  # with and without gradients


def activation_bytes(stage: Stage) -> int:
    """What a forward pass leaves alive, beside the weights."""
    with MemTracker() as tracker:
        logits = stage(tokens(stage.model))
        (found,) = tracker.get_tracker_snapshot("current").values()
    assert logits.requires_grad
    weights = sum(p.numel() * p.element_size() for p in stage.parameters())
    return int(found["Total"]) - weights


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
    for shape in (LATENT, *(ModelConfig(**cases.MODELS[name]) for name in ("latent", "gated"))):
        for changes in ({}, {"norm": "layernorm", "linear_bias": not shape.num_experts}):
            model = shape.model_copy(update=changes)
            with torch.device("meta"):
                counted = sum(p.numel() for p in Stage(model).parameters())
            assert counted == model.num_parameters, model
