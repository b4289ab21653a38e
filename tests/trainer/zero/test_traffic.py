"""The counters of a step against the prediction, byte for byte, and both against the papers.

Steps run on ranks of torch's fake process group, whose collectives do nothing: any rank of any
number of ranks is one process, and what is counted is what the trainer asks for. Pipelines, which
tell each other more than that, are compared in ``test_placement_exactness``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from support.constant_tokens import ConstantTokens
from support.expected_parameters import in_order, stage_parameters
from support.expected_traffic import Report, expected_traffic
from trainer.parallel.collectives import Traffic
from trainer.plan.config import TrainConfig
from trainer.plan.placement import Level
from trainer.runtime.device import Device
from trainer.train import Trainer

GPT = {"num_layers": 4, "hidden_size": 64, "num_heads": 8, "vocab_size": 128, "seq_length": 16}
ODD = {
    "num_layers": 4,
    "hidden_size": 36,
    "num_heads": 6,
    "num_kv_heads": 2,
    "ffn_hidden_size": 50,
    "vocab_size": 98,
    "seq_length": 10,
    "positions": "rotary",
    "norm": "rmsnorm",
    "activation": "swiglu",
    "linear_bias": False,
    "tied_embeddings": False,
}


def config(model: dict[str, Any], **values: Any) -> TrainConfig:
    return TrainConfig.parse(
        {
            "model": model,
            "data": "unused",
            "precision": "fp32",
            "device": "cpu",
            "gas": 2,
            "ranks_per_node": 8,
            "ranks_per_pair": 2,
            **values,
        }
    )


Count = Callable[[TrainConfig, int, int], Report]


@pytest.fixture
def count() -> Iterator[Count]:
    """Counts the second step of a rank of so many."""

    def count(config: TrainConfig, ranks: int, rank: int) -> Report:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
        training = Trainer(config, Device("cpu"))
        for step in range(2):
            training.traffic.totals.clear()
            training.step(step, ConstantTokens())
        return training.traffic.report(1)

    yield count
    dist.destroy_process_group()


CASES: list[tuple[str, dict[str, Any], int, int, dict[str, Any]]] = [
    ("zero0", GPT, 16, 3, {"placement": "zero0"}),
    ("zero1", ODD, 16, 3, {"placement": "zero1", "precision": "bf16"}),
    ("zero1 buckets", ODD, 16, 3, {"placement": "zero1", "ddp_bucket_size": 500}),
    ("zero1 in the node", GPT, 16, 9, {"placement": "zero1", "optimizer_shard": 8}),
    ("zero1 tp sp", ODD, 16, 5, {"placement": "zero1", "tp": 2, "sequence_parallel": True}),
    ("zero2", GPT, 16, 3, {"placement": "zero2"}),
    ("zero3", ODD, 16, 15, {"placement": "zero3", "reduce_precision": "bf16"}),
    ("zero2 once", ODD, 16, 3, {"placement": "zero2", "reduce_gradients": "step", "gas": 3}),
    ("hpz", ODD, 16, 3, {"placement": "hpz", "precision": "bf16", "gas": 3}),
    ("hpz renewed", ODD, 16, 3, {"placement": "hpz", "refresh_secondary": "micro_batch"}),
    ("mics", GPT, 32, 3, {"placement": "mics"}),
    ("zero++", ODD, 32, 3, {"placement": "zero++", "precision": "bf16"}),
    ("topo", GPT, 32, 31, {"placement": "zero_topo", "precision": "fp16"}),
    ("topo 384", ODD, 384, 7, {"placement": "zero_topo", "precision": "bf16", "gas": 1}),
    ("topo s8", ODD, 16, 3, {"placement": "zero_topo", "secondary_shard": 8}),
    ("topo tp", GPT, 32, 9, {"placement": "zero_topo", "tp": 2, "recompute": "full"}),
    ("tp 8 sp full", GPT, 8, 2, {"tp": 8, "sequence_parallel": True, "recompute": "full"}),
    ("cp", {**ODD, "seq_length": 16}, 16, 5, {"cp": 2, "placement": "zero3"}),
    ("cp tp full", GPT, 16, 6, {"cp": 4, "tp": 2, "optimizer_shard": 8, "recompute": "full"}),
    ("grid", GPT, 16, 11, {"gx": 2, "gy": 2, "gz": 2, "mbs": 2, "recompute": "full"}),
    ("grid odd", ODD, 8, 3, {"gy": 2, "gz": 2, "mbs": 4, "zero_stage": 1, "precision": "bf16"}),
    ("grid int8", GPT, 8, 6, {"gx": 2, "gz": 4, "mbs": 4, "quantize_weights": True}),
    ("one node", ODD, 8, 2, {"placement": "zero3", "quantize_gradients": True}),
    ("odd degrees", ODD, 24, 11, {"weight_shard": 3, "gradient_shard": 6, "optimizer_shard": 12}),
    ("uneven nodes", GPT, 12, 9, {"placement": "zero3", "quantize_gradients": True}),
]


@pytest.mark.parametrize(
    ("model", "ranks", "rank", "values"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_a_step_sends_what_was_predicted(
    count: Count, model: dict[str, Any], ranks: int, rank: int, values: dict[str, Any]
) -> None:
    found = count(config(model, **values), ranks, rank)
    assert found == expected_traffic(config(model, **values), ranks, rank)
    assert found["bytes"]["totals"]


@pytest.mark.parametrize("query_rank", [0, 12])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_latents_are_what_tensor_parallel_attention_exchanges(
    count: Count, query_rank: int, split: bool, recompute: str
) -> None:
    latent = {"q_lora_rank": query_rank, "kv_lora_rank": 8, "qk_rope_head_dim": 4}
    model = {**GPT, **latent, "qk_nope_head_dim": 8, "v_head_dim": 8, "positions": "rotary"}
    values = {"tp": 4, "sequence_parallel": split, "recompute": recompute}
    found = count(config(model, **values), 4, 1)["bytes"]["tensor"]
    assert found == expected_traffic(config(model, **values), 4, 1)["bytes"]["tensor"]


def parameters(model: dict[str, Any]) -> tuple[int, int]:
    """Of all layers, and outside of them."""
    every = list(in_order(stage_parameters(config(model).model)))
    layers = sum(p.numel for p in every if p.name.startswith("blocks."))
    return layers, sum(p.numel for p in every) - layers


def test_zero_3_sends_three_times_the_parameters_in_a_micro_batch() -> None:
    """Rajbhandari et al. 2020, section 7.2.2: two gatherings and a reduction, (d - 1) / d each.

    But what is outside of the layers is gathered once: its two passes follow each other.
    """
    found = expected_traffic(config(GPT, placement="zero3", gas=1), 16)["bytes"]
    layers, rest = parameters(GPT)
    assert found["weights"] == {"inter_node": 4 * 15 / 16 * (2 * layers + rest)}
    assert found["gradients"] == {"inter_node": 4 * 15 / 16 * (layers + rest)}
    assert set(found) == {"weights", "gradients", "totals"}


def test_zero_1_sends_as_much_as_an_all_reduce_whatever_the_micro_batches() -> None:
    """Rajbhandari et al. 2020, section 7.2.1."""
    few, many = (
        expected_traffic(config(GPT, zero_stage=1, gas=gas), 16)["bytes"] for gas in (1, 8)
    )
    assert few == many
    reduced = expected_traffic(config(GPT, zero_stage=0), 16)["bytes"]["gradients"]["inter_node"]
    sent = few["gradients"]["inter_node"] + few["publish"]["inter_node"]
    padding = 16 * 1024 * 2 * 4 * 2  # two buckets, filled up to whole rows on each rank
    assert reduced <= sent < reduced + padding


def test_a_secondary_copy_keeps_all_but_one_gathering_of_a_step_in_the_node() -> None:
    plain = expected_traffic(config(GPT, placement="zero3", gas=4), 16)
    once = expected_traffic(config(GPT, placement="hpz", gas=4), 16)
    each = expected_traffic(
        config(GPT, placement="hpz", gas=4, refresh_secondary="micro_batch"), 16
    )
    units, layers = 5, 4
    assert plain["calls"]["weights"] == {"inter_node": 4 * (units + layers)}
    assert once["calls"]["weights"] == {"inter_node": units}
    assert once["calls"]["secondary"] == {"node": 4 * (units + layers) - units}
    assert each["calls"]["weights"] == {"inter_node": 4 * units}
    assert each["calls"]["secondary"] == {"node": 4 * layers}


@pytest.mark.parametrize("model", [GPT, ODD])
def test_quantized_gradients_never_travel_in_full_width(model: dict[str, Any]) -> None:
    """No silent fallback where sizes do not divide, or on one node: DeepSpeed #5056."""
    for ranks in (8, 16, 24):  # one node and several
        values = {"placement": "zero3", "precision": "bf16"}
        plain = expected_traffic(config(model, **values), ranks)
        narrow = expected_traffic(config(model, quantize_gradients=True, **values), ranks)
        before = sum(plain["bytes"]["gradients"].values())
        assert sum(narrow["bytes"]["gradients"].values()) < before / 6  # INT4 and scales: 1 / 7.75
        hops = ["node"] if ranks == 8 else ["inter_node", "node"]
        assert sorted(narrow["bytes"]["gradients"]) == hops


def test_tensor_parallelism_sums_four_times_in_a_layer() -> None:
    """Shoeybi et al. 2019, section 3; and for embedding, head and the loss's two."""
    found = expected_traffic(config(GPT, tp=8, gas=3, mbs=2), 8)
    assert found["calls"]["tensor"] == {"node": 3 * (4 * 4 + 1 + 1 + 2)}
    activations = 4 * 16 * 2 * 64
    loss = 3 * 4 * 16 * 2
    one_pass = (4 * 4 + 2) * activations + loss
    assert found["bytes"]["tensor"] == {"node": 3 * 2 * 7 * one_pass // 8}


def test_the_grids_first_axis_alone_sends_what_tensor_parallelism_does() -> None:
    """Singh et al. 2024, section V-A: with every second layer transposed it is Megatron's."""
    for recompute in ("none", "full"):
        tensor = expected_traffic(config(GPT, tp=8, recompute=recompute), 16)
        first = expected_traffic(config(GPT, gx=8, recompute=recompute), 16)
        assert first == tensor


def test_the_grids_third_axis_alone_sends_what_zero_3_does() -> None:
    """Two gatherings of the layers' matrices and a reduction, each on its own sequences."""
    third = expected_traffic(config(GPT, gz=8, mbs=8, gas=1, recompute="full"), 8)["bytes"]
    zero3 = expected_traffic(config(GPT, placement="zero3", gas=1), 8)["bytes"]
    layers, rest = parameters(GPT)
    matrices = 4 * 12 * 64**2
    table = GPT["vocab_size"] * 64  # tied: the embedding's pass and the head's both gather it
    assert third["weights"] == {"node": 4 * 7 / 8 * 2 * (matrices + table)}
    assert third["gradients"] == {"node": 4 * 7 / 8 * (matrices + 2 * table)}
    vectors = layers - matrices
    assert zero3["weights"] == {"node": 4 * 7 / 8 * (2 * (matrices + vectors) + rest)}
    assert third["weights"]["node"] == pytest.approx(zero3["weights"]["node"], rel=0.04)
    assert set(third) == {"weights", "gradients", "gradient_sync", "totals"}


def test_the_third_axis_with_replicas_gathers_within_a_replica_only() -> None:
    """Hybrid sharding: whole weights between eight ranks, gradients summed between replicas."""
    alone = expected_traffic(config(GPT, gz=8, mbs=8), 8)["bytes"]
    hybrid = expected_traffic(config(GPT, gz=8, mbs=8), 16)["bytes"]
    assert hybrid["weights"] == alone["weights"]
    (far,) = set(hybrid["gradients"]) - {"node"}
    assert hybrid["gradients"]["node"] == alone["gradients"]["node"]
    layers, rest = parameters(GPT)
    assert hybrid["gradients"][far] < 4 * 2 / 2 * (layers + rest) / 2


def test_a_pipeline_sends_activations_on_and_their_gradients_back() -> None:
    def sent(rank: int, **values: Any) -> int:
        found = expected_traffic(config(GPT, pp=2, gas=6, mbs=3, **values), 16, rank)["bytes"]
        return found["pipeline"]["inter_node"]

    one = 4 * 16 * 3 * 64
    assert sent(0) == sent(15) == 6 * one
    assert sent(0, vpp=2) == sent(15, vpp=2) == 3 * 6 * one
    assert sent(0, tp=2, sequence_parallel=True) == 6 * one // 2


def test_a_report_gives_a_steps_share_and_forgets_what_was_cleared() -> None:
    ticks = iter(range(100))
    traffic = Traffic(clock=lambda: float(next(ticks)))
    traffic.add("totals", Level.NODE, 999)
    traffic.totals.clear()
    for _ in range(3):
        traffic.add("weights", Level.PAIR, 10)
    traffic.add("publish", Level.INTER_NODE, 7)
    assert traffic.report(2) == {
        "bytes": {"publish": {"inter_node": 3.5}, "weights": {"pair": 15}},
        "calls": {"publish": {"inter_node": 0.5}, "weights": {"pair": 1.5}},
        "seconds": {},
    }
