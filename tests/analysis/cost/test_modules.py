"""Single modules of a layer that Megatron Core's selective recomputation repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.cost.activations import layer_bytes, repeated_work
from analysis.cost.layer import Machine, layer
from analysis.cost.time_constants import TimeConstants
from analysis.prediction.residual import features
from search_spaces import Cluster
from search_spaces.known import framework_named
from search_spaces.language.schema import ModelFile
from search_spaces.shipped import read_named
from support.gpt_jobs import gpt
from trainer.plan.axes import tp
from trainer.plan.jobs import LORA, MODULES, NONE, SELECTIVE, Jobs, jobs

BRIDGE = framework_named("megatron-bridge")
H100 = Machine(Cluster.named("dgx_h100"), BRIDGE, TimeConstants())
PLAN = {"tp": 1, "pp": 4, "ep": 8, "dp": 16, "mbs": 1, "gas": 16, "zero_stage": 1}
SEVERAL = "layernorm,mla_up_proj,moe_act,shared_experts"


def named(model: str, modules: Any, **changes: Any) -> Jobs:
    columns = {**PLAN, "recompute": SELECTIVE, "recompute_modules": modules, **changes}
    return jobs(columns, read_named(ModelFile, "model", model).config())


def discarded(model: str, modules: str, **changes: Any) -> float:
    """Bytes of a token that a layer does not keep, in the mean over all layers."""
    both = named(model, modules, recompute=[NONE, SELECTIVE], **changes)
    kept = layer_bytes(both, BRIDGE, both.options.recompute)
    return float((kept[0] - kept[1]) / both.tokens[0])


@pytest.mark.parametrize(
    ("modules", "fp8", "bytes_of_a_token"),
    [
        # Of DeepSeek-V3's 61 layers 58 have experts, of which a token meets 8.
        ("moe_act", False, 58 / 61 * 8 * 2 * 2048),
        ("moe_act", True, 58 / 61 * 8 * 2048),
        # Inputs are in 8 bits, gates' inputs in 16, and what is between gate and product in 8.
        ("moe", True, 58 / 61 * (8 * (7168 + 5 * 2048) + 5 * 2048)),
        ("moe", False, 58 / 61 * (8 * 2 * (7168 + 3 * 2048) + 2 * 3 * 2048)),
        ("moe,moe_act,shared_experts", False, 58 / 61 * 2 * (8 * (7168 + 3 * 2048) + 3 * 2048)),
        ("shared_experts", False, 58 / 61 * 2 * 3 * 2048),
        ("mlp", False, 3 / 61 * 2 * (7168 + 3 * 18432)),
        ("mlp", True, 3 / 61 * (7168 + 5 * 18432)),
        # Queries and keys of 128 + 64 channels, values of 128, normed latents; not rotary keys.
        ("mla_up_proj", False, 2 * (128 * (2 * 192 + 128) + 1536 + 512 - 64)),
        ("mla_up_proj", True, 2 * (128 * (2 * 192 + 128) - 64) + 1536 + 512),
        ("layernorm", False, 2 * 7168 * (1 + 58 / 61)),
        ("core_attn", False, 0.0),  # a flash kernel keeps no scores
        ("", False, 0.0),
        ("gdn_norm_out", False, 0.0),
    ],
)
def test_a_repeated_module_keeps_nothing_but_what_it_starts_from(
    modules: str, fp8: bool, bytes_of_a_token: float
) -> None:
    found = discarded("deepseek_v3", modules, fp8=fp8)
    assert found == pytest.approx(bytes_of_a_token, abs=1e-3)


def test_modules_add_up_and_split_as_their_tensors_do() -> None:
    each = [discarded("deepseek_v3", name) for name in SEVERAL.split(",")]
    assert discarded("deepseek_v3", SEVERAL) == pytest.approx(sum(each))
    heads = 2 * 128 * (2 * 192 + 128)
    split = discarded("deepseek_v3", "mla_up_proj", tp=4, etp=1, sequence_parallel=True)
    assert split == pytest.approx((heads + 2 * (1536 + 512 - 64)) / 4)


def test_norms_are_repeated_only_where_no_product_is_fused_with_them() -> None:
    dense = gpt(recompute=[NONE, SELECTIVE], recompute_modules="layernorm")
    assert len({*layer_bytes(dense, BRIDGE, dense.options.recompute)}) == 1
    assert discarded("qwen3_235b_a22b", "layernorm") == pytest.approx(2 * 4096)
    assert discarded("qwen3_235b_a22b", "mla_up_proj,mlp,shared_experts") == 0


def test_scores_are_kept_unless_attention_is_among_the_modules() -> None:
    names = ["none", "core_attn", "mlp", "core_attn,mlp"]
    unfused = BRIDGE.with_habits(flash_attention=False)
    job = gpt(recompute=[NONE, *[SELECTIVE] * 4], recompute_modules=["none", *names], tp=8)
    kept = layer_bytes(job, unfused, job.options.recompute) / job.tokens
    scores, unit = 64 * 2048 * 2 / 8, 2 * (6144 + 2 * 4 * 6144 / 8)
    assert kept[0] - kept[1:] == pytest.approx([scores, scores, unit, scores + unit])
    repeated = layer(job, H100).recompute
    assert repeated[1] == repeated[2] > 0 == repeated[0]
    assert repeated[4] == pytest.approx(repeated[2] + repeated[3])


def test_what_is_repeated_takes_its_share_of_a_layers_products() -> None:
    names = [*MODULES, "none", "mla_up_proj,mlp"]
    job = named("deepseek_v3", names)
    share = dict(zip(names, repeated_work(job, BRIDGE)[0], strict=True))
    up = 1536 * 128 * 192 + 512 * 128 * 256
    attention = up + 7168 * (1536 + 576) + 128 * 128 * 7168
    expert, dense = 3 * 7168 * 2048, 3 * 7168 * 18432
    mixed = 9 * expert + 256 * 7168
    whole = 61 * attention + 58 * mixed + 3 * dense
    assert share["mla_up_proj"] == pytest.approx(61 * up / whole)
    assert share["moe"] == pytest.approx(58 * mixed / whole)
    assert share["shared_experts"] == pytest.approx(58 * expert / whole)
    assert share["mlp"] == pytest.approx(3 * dense / whole)
    assert share["mla_up_proj,mlp"] == pytest.approx(share["mla_up_proj"] + share["mlp"])
    assert share["none"] == share["core_attn"] == share["moe_act"] == share["layernorm"] == 0
    times = dict(zip(names, layer(job, H100).recompute, strict=True))
    gate = 2 * 8 * 2048 * 58 / 61 * 4096  # written and read again
    assert times["moe_act"] == pytest.approx(2 * gate / H100.compute.memory_bytes_per_s)
    forward = H100.compute.forward(job[:1])
    assert times["core_attn"] == times["none"] == pytest.approx(forward.attention[0])
    assert times["mla_up_proj"] > share["mla_up_proj"] * forward.gemm[0] > 5 * times["moe_act"]


def test_only_whole_mixtures_send_their_tokens_again() -> None:
    sent = layer(named("deepseek_v3", ["none", "moe_act", "moe"], ep=64, dp=64), H100).experts
    assert sent[1] == sent[0] and sent[2] == pytest.approx(1.5 * sent[0])


def test_rings_send_keys_again_only_where_attention_is_repeated() -> None:
    job = named("qwen3_235b_a22b", ["core_attn", "layernorm"], cp=4, dp=4)
    plain = named("qwen3_235b_a22b", "none", cp=4, dp=4, recompute=NONE)
    (with_core, without), none = layer(job, H100).context, layer(plain, H100).context[0]
    assert with_core > without == none


def test_modules_say_nothing_where_selective_recomputation_is_off() -> None:
    off = named("deepseek_v3", ["none", "moe"], recompute=NONE)
    assert np.ptp(layer_bytes(off, BRIDGE, off.options.recompute)) == 0
    assert layer(off, H100).recompute.tolist() == [0, 0]


def test_a_repeated_feed_forward_part_sums_over_tp_again() -> None:
    names = ["none", "mlp", "layernorm"]
    nothing_hidden = Machine(H100.cluster, framework_named("megatron-lm"), H100.constants)
    job = named("llama_8b", names, tp=8, dp=1, sequence_parallel=True)
    sent = layer(job, nothing_hidden).tensor
    # Two sums forward, and as many backward with two further gathers: ten gathers and scatters.
    assert sent[0] == sent[2] and sent[1] == pytest.approx(12 / 10 * sent[0])
    # moe_layer.py: a checkpoint around shared experts, which are split by tp; 58 layers have them.
    mixed = named("deepseek_v3", ["none", "shared_experts", "moe"], tp=8, dp=16, etp=1, ep=8)
    sent = layer(mixed, nothing_hidden).tensor
    [*_, one] = tp.sums(mixed, nothing_hidden.framework, {"forward": (1.0, 0.0)})
    more = 58 / 61 * nothing_hidden.seconds(one)
    assert sent[1] == sent[2] == pytest.approx(sent[0] + more[0])
    without = named("mixtral_8x7b", ["none", "moe"], tp=8, dp=16, etp=1, ep=8)
    assert np.ptp(layer(without, nothing_hidden).tensor) == 0


def test_of_frozen_layers_modules_save_nothing() -> None:
    """They keep less than trained ones: subtracting the same could leave less than nothing."""
    job = named("llama_8b", ["none", "mlp"], tuning=LORA)
    assert np.ptp(layer_bytes(job, BRIDGE, job.options.recompute)) == 0


def test_configurations_that_differ_in_modules_are_not_the_same_point() -> None:
    """A trial of one must not settle what the model says of another."""
    job = named("deepseek_v3", ["none", "core_attn", "moe_act", "mla_up_proj,moe_act"])
    points = features(job, np.zeros((4, 0)))
    apart = np.linalg.norm(points[:, None] - points, axis=-1)
    assert apart[0, 1] == 0  # the framework's habit, said otherwise
    assert np.all(apart[1:, 1:][~np.eye(3, dtype=bool)] > 0)


@pytest.mark.parametrize("name", ["meshtune", "torchtitan"])
def test_modules_change_nothing_where_recomputation_keeps_products(name: str) -> None:
    """A layer would be left with less than nothing."""
    habits, given = framework_named(name), {"recompute": SELECTIVE, "seq_length": 32768}
    kept = [
        layer_bytes(job, habits, job.options.recompute)[0]
        for job in (gpt(**given), gpt(recompute_modules="mlp", **given))
    ]
    assert kept[0] == kept[1] > 0
