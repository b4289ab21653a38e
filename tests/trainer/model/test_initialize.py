"""First weights are the same for every parallel layout."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from support.models import GPT, MODELS, whole
from trainer.model import initialize as initialization
from trainer.model.initialize import initialize
from trainer.model.slices import WHOLE, Cut
from trainer.model.transformer import Stage
from trainer.parallel import tensor as tensor_parallel
from trainer.plan.model import ModelConfig


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
    monkeypatch.setattr(initialization, "DRAW_ELEMENTS", draw_elements)
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
                    splits = tensor_parallel.split_over_tp(style.dims, Cut(rank, tp))
                    tensor_parallel.split(module, splits)
        stage.to_empty(device="cpu")
        initialize(stage, "", model, seed=3)
        ranks.append(stage)
    expected = whole(model)
    for path, module in expected.named_modules():
        copies = [rank.get_submodule(path) for rank in ranks]
        for name, value in module.named_parameters(recurse=False):
            by = getattr(copies[0], "splits", {}).get(name, WHOLE)
            dim = 0 if by.rows.ranks > 1 else 1 if by.columns.ranks > 1 else None
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
