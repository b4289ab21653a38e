"""What DeepSpeed cannot train is refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from support.deepspeed_cases import job
from trainer.deepspeed.rules import unsupported
from trainer.plan.config import TrainConfig


def ask(ranks: int = 8, device: Any = "cpu", node: int | None = None, **values: Any) -> str | None:
    return unsupported(TrainConfig.parse(job("", **values)["config"]), ranks, device, node)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"tp": 2}, "tp 2: .*set tp: 1"),
        ({"gx": 2, "gz": 2, "mbs": 2}, "gx 2, gy 1, gz 2: .*set all of them to 1"),
        ({"sequence_parallel": True}, "sequence_parallel: .*set sequence_parallel: false"),
        ({"pp": 2, "vpp": 2, "zero_stage": 1}, "vpp 2: .*set vpp: 1"),
        ({"pp": 2, "zero_stage": 1, "rank_order": "tp-pp-cp-dp"}, "rank_order: tp-cp-dp-pp"),
        ({"pp": 2, "zero_stage": 2}, "pp 2 with gradient_shard 4: .*set zero_stage: 1"),
        ({"pp": 2, "zero_stage": 3}, "pp 2 with gradient_shard 4: .*set zero_stage: 1"),
        ({"pp": 2}, "pp 2 with ZeRO-0: .*set zero_stage: 1"),
        ({"zero_stage": 3, "weight_shard": 4}, "weight_shard 4, .*all 8 replicas"),
        ({"zero_stage": 2, "gradient_shard": 4}, "gradient_shard 4, .*all 8 replicas"),
        ({"optimizer_shard": 2}, "optimizer_shard 2.*all 8 replicas"),
        ({"placement": "mics", "ranks_per_node": 4}, "MiCS left it"),
        ({"placement": "zero_topo", "ranks_per_node": 4}, "weight_shard 4"),
        ({"zero_stage": 3, "secondary_shard": 1}, "secondary_shard 1: .*zero_stage: 2"),
        (
            {"zero_stage": 3, "secondary_shard": 2, "quantize_secondary": True},
            "set quantize_secondary: false",
        ),
        ({"zero_stage": 3, "quantize_weights": True}, "quantize_weights on CPU"),
        ({"zero_stage": 3, "quantize_gradients": True}, "quantize_gradients on CPU"),
        ({"placement": "zero++", "ranks_per_node": 4}, "quantize_weights on CPU"),
        ({"recompute": "selective"}, "recompute selective: .*set recompute: full"),
        (
            {"recompute": "full", "recompute_every": 2},
            "recompute_every 2: .*set recompute_every: 1",
        ),
        ({"compile": True}, "compile: .*set compile: false"),
        ({"tune_kernels": True}, "tune_kernels: .*set tune_kernels: false"),
        ({"precision": "fp16", "zero_stage": 1}, "fp16 on CPU: .*set precision: bf16"),
    ],
)
def test_what_deepspeed_cannot_do_has_a_reason_and_a_remedy(
    values: dict[str, Any], reason: str
) -> None:
    found = ask(**values)
    assert found is not None
    assert found.startswith("engine deepspeed: ")
    with pytest.raises(ValueError, match=reason):
        raise ValueError(found)


@pytest.mark.parametrize("stage", range(4))
def test_every_zero_stage_is_supported_and_recomputes_in_full(stage: int) -> None:
    assert ask(zero_stage=stage, precision="bf16", recompute="full") is None


def test_a_pipeline_is_supported_with_zero_1_and_with_one_replica() -> None:
    assert ask(pp=2, zero_stage=1) is None
    assert ask(ranks=2, pp=2, zero_stage=3) is None


def test_on_a_gpu_fp16_and_quantization_are_supported_where_they_work() -> None:
    assert ask(device="cuda", precision="fp16", zero_stage=2) is None
    assert "fp16 with ZeRO-0" in str(ask(device="cuda", precision="fp16"))
    zero_plus_plus = {"device": "cuda", "placement": "zero++"}
    assert ask(**zero_plus_plus, node=4) is None
    assert "quantize_gradients on one node" in str(ask(**zero_plus_plus, node=8))
    assert ask(**zero_plus_plus, node=8, quantize_gradients=False) is None
    assert ask(**zero_plus_plus, ranks=12, node=8) is None, "a node and a half are two"
    partly = ask(device="cuda", zero_stage=2, quantize_weights=True)
    assert "quantize_weights: only its ZeRO-3 quantizes" in str(partly)


def test_with_one_replica_nothing_is_split_and_nothing_is_refused() -> None:
    for values in ({"zero_stage": 3}, {"placement": "mics"}, {"placement": "zero++"}):
        assert ask(ranks=1, precision="bf16", **values) is None
