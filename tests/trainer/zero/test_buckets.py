"""Buckets of whole weights: how long they live, and when they travel (torch's fake groups)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from support.constant_tokens import ConstantTokens
from trainer.plan.config import TrainConfig
from trainer.plan.states import PENDING_REDUCTIONS
from trainer.runtime.device import Device
from trainer.train import Trainer
from trainer.zero.buckets import WholeWeights

MODEL = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "vocab_size": 64, "seq_length": 8}
# Fake groups never wait.
pytestmark = pytest.mark.filterwarnings("ignore:Set timeout is now only supported")


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=8)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "values",
    [
        {"placement": "zero0"},
        {"placement": "zero1", "precision": "bf16", "gas": 2},
        {"placement": "zero2", "precision": "bf16", "gas": 2},
        {"gx": 2, "gy": 2, "gz": 2, "mbs": 2},
    ],
    ids=["zero0", "zero1", "zero2", "grid"],
)
def test_a_dropped_trainer_keeps_no_process_group(values: dict[str, Any]) -> None:
    """Groups that are never let go keep two threads each: hundreds of them, over many trainers."""
    config = TrainConfig.parse(
        {"model": MODEL, "data": "unused", "precision": "fp32", "ranks_per_node": 4, **values}
    )
    training = Trainer(config, Device("cpu"))
    training.step(0, ConstantTokens())
    mesh = training.mesh
    held = [weakref.ref(one) for one in (mesh, mesh.states.group) if one is not None]
    del training, mesh
    gc.collect()
    assert [ref() for ref in held if ref() is not None] == []


@pytest.mark.parametrize("placement", ["zero1", "zero2"])
def test_updated_weights_travel_while_the_first_layers_of_the_next_step_compute(
    placement: str,
) -> None:
    """Each part of the model waits for its own, and only for them."""
    values = {"placement": placement, "ddp_bucket_size": 5000, "precision": "fp32"}
    config = TrainConfig.parse({"model": MODEL, "data": "unused", **values})
    training = Trainer(config, Device("cpu"))
    (stage,), buckets = training.stages, training.weights.buckets
    ahead: dict[str, list[bool]] = {"0": [], "1": []}
    for name, block in stage.blocks.items():
        own = {id(p) for p in block.parameters()}

        def note(*_: object, name: str = name, own: set[int] = own) -> None:
            mine = [b for b in buckets if own & {id(p) for p in b.parameters}]
            assert not any(bucket.waiting for bucket in mine)
            ahead[name].append(any(bucket.waiting for bucket in buckets))

        block.register_forward_pre_hook(note)
    for step in range(2):
        training.step(step, ConstantTokens())
        assert all(bucket.waiting for bucket in buckets)
    assert ahead == {"0": [False, True], "1": [False, False]}  # the last of them
    training.finish()
    assert not any(bucket.waiting for bucket in buckets)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_whole_split_gradients_exist_only_while_they_are_filled_and_leave(precision: str) -> None:
    """Of many buckets few have memory at once, and none between two steps."""
    values = {"placement": "zero2", "ddp_bucket_size": 1000, "precision": precision, "gas": 2}
    config = TrainConfig.parse({"model": MODEL, "data": "unused", **values})
    training = Trainer(config, Device("cpu"))
    weights = training.weights
    assert isinstance(weights, WholeWeights) and weights.reductions is not None
    every = [bucket.gradients for bucket in weights.buckets]
    kinds = len({bucket.traits for bucket in weights.buckets})
    filling, leaving = [], []

    def note(_: object) -> None:
        assert weights.reductions is not None
        filling.append(sum(one.whole is not None for one in every))
        leaving.append(len(weights.reductions.ends))

    for bucket in weights.buckets:
        for parameter in bucket.parameters:
            parameter.register_post_accumulate_grad_hook(note)
    training.step(0, ConstantTokens())
    assert len(every) > kinds + PENDING_REDUCTIONS
    assert 0 < max(filling) <= kinds and max(leaving) == PENDING_REDUCTIONS
    assert not weights.reductions.ends and all(one.whole is None for one in every)
    assert all(p.grad is None for bucket in weights.buckets for p in bucket.parameters)


def test_quantized_or_unevenly_split_gradients_are_not_in_buckets() -> None:
    for values in ({"quantize_gradients": True}, {"gradient_shard": 4}, {"quantize_weights": True}):
        values = {"placement": "zero2", **values}
        config = TrainConfig.parse({"model": MODEL, "data": "unused", **values})
        assert config.place(8).fully_sharded
    whole = {"placement": "zero2", "gradient_shard": 4, "optimizer_shard": 4}
    assert not TrainConfig.parse({"model": MODEL, "data": "unused", **whole}).place(8).fully_sharded
