"""Activations of layers and losses: as published, and as torch and the trainer save them."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn.functional import cross_entropy, layer_norm

from analysis.cost.activations import layer_bytes, logits_bytes, mask_bytes, waiting_logits_bytes
from analysis.cost.stages import fullest_stages
from benchmarks.trainer import gpu_cases, gpu_tables
from search_spaces.frameworks import Framework
from search_spaces.known import FRAMEWORKS, framework_named
from support.expert_cases import SHAPE as EXPERTS
from support.gpt_jobs import gpt
from support.models import whole
from trainer.model.experts import MixtureMlp
from trainer.model.transformer import Head
from trainer.parallel import loss
from trainer.plan.jobs import BREADTH_FIRST, FULL, NONE, ONE_F_ONE_B, SELECTIVE, ZERO_BUBBLE, jobs
from trainer.plan.model import ModelConfig

GIB = 2.0**30
TRUTH = Path(__file__).parents[4] / "shared" / "truth"
MEGATRON = FRAMEWORKS["megatron-lm"]
UNFUSED = Framework(name="unfused", flash_attention=False, masked_dropout=True)


@pytest.mark.parametrize(
    ("recompute", "sequence_parallel", "formula"),
    [
        (NONE, False, lambda s, b, h, a, t: s * b * h * (10 + 24 / t + 5 * a * s / (h * t))),
        (NONE, True, lambda s, b, h, a, t: s * b * h / t * (34 + 5 * a * s / h)),
        (SELECTIVE, False, lambda s, b, h, a, t: s * b * h * (10 + 24 / t)),
        (SELECTIVE, True, lambda s, b, h, a, t: 34 * s * b * h / t),
        (FULL, False, lambda s, b, h, a, t: 2 * s * b * h),
    ],
)
def test_a_layers_activations_are_those_of_korthikanti_table_2(
    recompute: int, sequence_parallel: bool, formula: Any
) -> None:
    job = gpt(sequence_parallel=sequence_parallel, recompute=recompute)
    made = layer_bytes(job, UNFUSED, job.options.recompute)[0]
    assert made == pytest.approx(formula(2048, 4, 6144, 64, 8))


def test_first_stages_of_korthikanti_figure_1_hold_the_published_activations() -> None:
    path = TRUTH / "korthikanti_table5.csv"
    if not path.exists():
        pytest.skip(f"needs the published table {path}")
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    for row in csv.DictReader(lines):
        for name, parallel, recompute in (
            ("act_GiB_none", False, NONE),
            ("act_GiB_seqpar_selective", True, SELECTIVE),
        ):
            job = gpt(
                num_layers=float(row["layers"]),
                hidden_size=float(row["hidden"]),
                num_heads=float(row["heads"]),
                tp=float(row["tp"]),
                pp=float(row["pp"]),
                vpp=float(row["virtual_pp"]),
                mbs=float(row["mbs"]),
                gas=float(row["gbs"]) / float(row["mbs"]),
                recompute=recompute,
                sequence_parallel=parallel,
            )
            first = fullest_stages(job, UNFUSED)[0]
            layers = first.layers * layer_bytes(job, UNFUSED, job.options.recompute)
            assert layers[0] * first.in_flight[0] / GIB == pytest.approx(float(row[name]), rel=1e-3)


def test_flash_attention_keeps_no_scores_and_grouped_queries_keep_fewer_keys() -> None:
    none = gpt(recompute=NONE)
    scores = 5 * 64 * 2048**2 * 4 / 8
    flash = layer_bytes(none, MEGATRON, none.options.recompute)
    saved = layer_bytes(none, UNFUSED, none.options.recompute) - flash
    assert saved[0] == pytest.approx(scores - 4 * 64 * 2048 * 4 / 8)
    grouped = gpt(recompute=NONE, kv_heads=8)
    fewer = flash - layer_bytes(grouped, MEGATRON, grouped.options.recompute)
    assert fewer[0] == pytest.approx(2 * 2 * (6144 - 768) * 2048 * 4 / 8)


@pytest.mark.parametrize(("query_rank", "rank"), [(0, 128), (192, 64), (384, 128)])
def test_latent_layers_are_priced_as_well_as_plain_ones(query_rank: int, rank: int) -> None:
    """Beside queries, keys and values they keep what the latents' norms and products begin with."""
    shape = {
        "hidden_size": 512, "num_heads": 8, "seq_length": 256, "vocab_size": 64, "norm": "rmsnorm",
        "ffn_hidden_size": 1024, "activation": "swiglu", "positions": "rotary",
        "linear_bias": False,
    }  # fmt: skip
    latent = {
        "q_lora_rank": query_rank, "kv_lora_rank": rank, "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32, "v_head_dim": 64,
    }  # fmt: skip
    priced = []
    for sizes in (shape, shape | latent):
        held = []
        for num_layers in (1, 2):
            model = ModelConfig(num_layers=num_layers, **sizes)
            stage = whole(model)
            with MemTracker() as tracker:
                logits = stage(torch.zeros(1, 256, dtype=torch.int64))
                (found,) = tracker.get_tracker_snapshot("current").values()
            assert logits.requires_grad
            held.append(found["Total"] - 4 * model.num_parameters)
        job = jobs({"tp": 1, "pp": 1, "dp": 1, "mbs": 1, "gas": 1, "zero_stage": 0}, model)
        layer = layer_bytes(job, FRAMEWORKS["meshtune"], job.options.recompute)[0]
        priced.append(layer / (held[1] - held[0]))
    assert priced[1] == pytest.approx(priced[0], rel=0.02)


def test_logits_wait_on_the_last_stage_of_other_schedules() -> None:
    job = gpt(pp=4, gas=16, schedule=np.array([ONE_F_ONE_B, BREADTH_FIRST, ZERO_BUBBLE]))
    *_, last = fullest_stages(job, MEGATRON)
    one = job.tokens * job.options.element_bytes * job.model.vocab_size / job.layout.tp
    waiting = waiting_logits_bytes(job, last.in_flight)
    assert waiting.tolist() == pytest.approx((np.array([0, 15, 3]) * one).tolist())


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("hidden", [32, 256])
def test_logits_take_what_the_trainers_output_layer_and_loss_hold_in_either_format(
    hidden: int, precision: torch.dtype, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, vocabulary = 128, 512
    at_once = 8 * vocabulary
    monkeypatch.setattr(loss, "CHUNK_ELEMENTS", at_once)
    shape = {"num_heads": 1, "hidden_size": hidden, "vocab_size": vocabulary}
    head = Head(ModelConfig(num_layers=1, seq_length=tokens, **shape), True).to(precision)
    x = torch.randn(tokens, 1, hidden, dtype=precision, requires_grad=True)
    targets = torch.randint(vocabulary, (1, tokens))
    assert head.weight is not None
    states, weight = x.view_as(x), head.weight.view_as(head.weight)
    if chunked:
        loss.chunk_loss(head, None, False)
    with MemTracker() as tracker:  # counts what is made here, and views: weights and inputs
        found = head(states, weight, targets) if chunked else head(states, weight)
        mean = found if chunked else loss.cross_entropy(found, targets, None)
        torch.autograd.grad(mean, (states, weight))  # nothing else holds them, as in a bucket
        (most,) = tracker.get_tracker_snapshot("peak").values()
    width = x.element_size()
    job = gpt(
        tp=1, mbs=1, seq_length=tokens, element_bytes=width, chunked_loss=chunked, **shape
    )  # fmt: skip
    kept = logits_bytes(job, framework_named("meshtune"))[0]
    assert kept == width * vocabulary * (hidden if chunked else tokens + hidden)
    made = most["Total"] - width * (weight.numel() + x.numel())
    beside = 6 * 4 * at_once + 2 * 4 * tokens * hidden + 64 * tokens  # chunks, and gradients of x
    assert kept <= made <= kept + beside


def test_a_plain_loss_takes_what_torchs_holds() -> None:
    tokens, vocabulary = 128, 1024
    logits = torch.randn(tokens, vocabulary, dtype=torch.bfloat16).requires_grad_()
    with MemTracker() as tracker:  # counts what is made here, and so not the logits
        cross_entropy(logits.float(), torch.randint(vocabulary, (tokens,))).backward()
        (most,) = tracker.get_tracker_snapshot("peak").values()
    shape = {"tp": 1, "mbs": 1, "seq_length": tokens, "vocab_size": vocabulary}
    kept = logits_bytes(gpt(**shape), framework_named("fsdp"))[0]
    assert kept == pytest.approx(most["Total"] + 2 * logits.numel(), rel=1e-3)
    fused = logits_bytes(gpt(**shape, fused_loss=True), framework_named("fsdp"))[0]
    assert fused == 2 * logits.numel()
    assert logits_bytes(gpt(**shape, chunked_loss=True), framework_named("fsdp"))[0] == 0


@pytest.mark.parametrize("gated", [True, False])
def test_layers_under_autocast_keep_what_torch_saves(gated: bool) -> None:
    """Norms of float32 activations, and the products that read them, in transformers' Llama or
    GPT-2."""
    tokens, width = 32, 64
    products = (3, 2) if gated else (1, 1)
    kept: dict[int, torch.Tensor] = {}

    def norm(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        if not gated:
            return layer_norm(x, (width,), scale, scale)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return scale * x

    def save(saved: torch.Tensor) -> torch.Tensor:
        if saved.shape == (tokens, width):
            kept[saved.data_ptr()] = saved
        return saved

    hooks = torch.autograd.graph.saved_tensors_hooks(save, lambda saved: saved)
    outputs = []
    with hooks, torch.autocast("cpu", torch.bfloat16):
        for count in products:
            inside = norm(
                torch.randn(tokens, width).requires_grad_(), torch.ones(width).requires_grad_()
            )
            layers = [torch.nn.Linear(width, width, bias=False) for _ in range(count)]
            outputs += [layer(inside) for layer in layers]
    saved_bytes = sum(each.numel() * each.element_size() for each in kept.values())
    plain = framework_named("fsdp").with_habits(autocast_layers=False)
    job = gpt(tp=1, mbs=1, seq_length=tokens, hidden_size=width, gated=gated, recompute=NONE)
    one, other = (
        layer_bytes(job, habits, np.zeros(1)) for habits in (framework_named("fsdp"), plain)
    )
    assert one - other == pytest.approx(saved_bytes - 4 * 2 * tokens * width)


def test_a_mixtures_routes_stay_whatever_is_recomputed_and_its_router_keeps_wide_inputs() -> None:
    """As many bytes as the built-in trainer's tensors have."""
    shape = ModelConfig.model_validate({**EXPERTS, "seq_length": 64})
    mixture = shape.mixture
    assert mixture is not None
    mlp = MixtureMlp(shape, mixture, None)
    x = torch.randn(64, 1, shape.hidden_size)
    routes = mlp._routes(mlp.router(x.flatten(0, 1)), 1)
    kept = sum(each.nbytes for each in (routes.chosen, routes.order, routes.inverse))
    made = jobs({"mbs": 1, "tp": 1, "dp": 1, "gas": 1, "pp": 1, "zero_stage": 0}, shape)
    habits = framework_named("meshtune")
    plain = habits.with_habits(keeps_products="")
    full = [layer_bytes(made, each, np.array([FULL])) for each in (habits, plain)]
    assert full[0] - full[1] == kept
    none = [layer_bytes(made, each, np.array([NONE])) for each in (habits, plain)]
    scores = 64 * 4 * 2 * mixture.num_experts
    assert none[0] - none[1] == kept + 64 * 4 * shape.hidden_size + scores


def test_keys_are_repeated_where_documents_are_told_apart() -> None:
    job = gpt(
        tp=1, kv_heads=8, gated=True, element_bytes=4, masks_documents=np.array([False, True])
    )
    habits = framework_named("meshtune")
    one, masked = layer_bytes(job, habits, np.zeros(2))
    # Of 64 heads, keys and values in place of the product's whole output, of 64 + 2 * 8.
    assert masked - one == 4 * (2 * 64 - 80) / 64 * 6144 * 4 * 2048
    other = layer_bytes(job, framework_named("fsdp"), np.zeros(2))
    assert other[0] == other[1]


WIDE = {
    "8B": {},
    "1B": {"hidden_size": 2048, "num_heads": 32, "ffn_hidden_size": 8192},
    "gpt": {**gpu_cases.GPT, "ffn_hidden_size": 16384},
}
"""Layers that differ from ``gpu_cases.WIDTHS``."""
CODES = {"none": NONE, "selective": SELECTIVE, "full": FULL}


def compiled_units(kind: str, name: str) -> str:
    """What a compiled layer keeps beside its input, in tokens x hidden size x 2 bytes."""
    shape = ModelConfig(**{**gpu_cases.WIDTHS, **WIDE[name]})
    plain = {"mbs": 1, "tp": 1, "dp": 1, "gas": 1, "pp": 1, "zero_stage": 0}
    job = jobs({**plain, "compiled": True}, shape)
    kept = layer_bytes(job, framework_named("meshtune"), np.array([CODES[kind]]))[0]
    return f"{kept / (shape.seq_length * shape.hidden_size * 2) - 1:.1f}"


@pytest.mark.parametrize("kind", [*CODES])
def test_a_compiled_layer_keeps_what_the_compilers_table_says(kind: str) -> None:
    told = {row[6] for row in gpu_tables.rows("compiled") if row[0] == kind}
    assert told == {compiled_units(kind, "8B")}


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["1B", "gpt"])
@pytest.mark.parametrize("kind", ["none", "selective"])
def test_compiled_layers_of_other_widths_keep_what_the_compiler_saves(kind: str, name: str) -> None:
    pytest.importorskip("triton")
    code = (
        "import sys; from benchmarks.pretended_gpu import inductor; inductor.GPUS = (); "
        "inductor.prepare(); print(inductor.layer(sys.argv[1], **eval(sys.argv[2]))['kept'])"
    )
    argv = [sys.executable, "-W", "ignore", "-c", code, kind, repr(WIDE[name])]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    shape = ModelConfig(**{**gpu_cases.WIDTHS, **WIDE[name]})
    units = int(done.stdout) / (shape.seq_length * shape.hidden_size * 2)
    assert f"{units:.1f}" == compiled_units(kind, name)


def test_documents_need_a_mask_where_no_kernel_takes_packed_ones() -> None:
    job = gpt(element_bytes=np.array([2, 4]), masks_documents=True)
    assert mask_bytes(job).tolist() == [0, 4 * 4 * 2048**2]
    odd = gpt(num_heads=np.array([64, 512]), kv_heads=8, masks_documents=True)
    assert odd.model.head_dim.tolist() == [96, 12]
    assert mask_bytes(odd).tolist() == [0, 4 * 2 * 2048**2]
