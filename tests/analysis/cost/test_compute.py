"""Products and attention of one GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.functional import silu
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from analysis.cost.compute import ALONE, Compute, ComputeConstants
from analysis.sweeps.gpus import cluster_of
from benchmarks.cost_model.statements import gpt_shape
from search_spaces import FRAMEWORKS
from trainer.plan.jobs import jobs

TRUTH = Path(__file__).parents[4] / "shared" / "truth"
MEGATRON = FRAMEWORKS["megatron-lm"]
SHAPE = {**gpt_shape(4, 1024, 16, 8192), **dict.fromkeys(("tp", "pp", "dp", "mbs", "gas"), 1)}


def test_products_of_any_shape_take_what_seven_gpus_measured() -> None:
    """In 16 bits, the rate of each GPU known from one half of its products, the others judged."""
    file = TRUTH / "nvidia_gemm_aiconfigurator.csv"
    if not file.exists():
        pytest.skip("the folder of measured tables is not here")
    table = pd.read_csv(file, comment="#")
    errors = {}
    for gpu, rows in table[table["dtype"] == "bfloat16"].groupby("gpu"):
        compute = Compute(cluster_of(str(gpu)), MEGATRON, ComputeConstants())
        measured_s = rows["latency_ms"].to_numpy() * 1e-3
        start_s = compute.constants.product_s
        one_s = compute.gemm_s(*(rows[n].to_numpy(float) for n in "mnk"), np.ones(1)) - start_s
        known = np.arange(len(rows)) % 2 == 0
        rate = np.median(one_s[known] / np.maximum(measured_s[known] - start_s, 1e-7))
        errors[gpu] = np.abs(np.log((one_s / rate + start_s) / measured_s)[~known]).mean()
    assert len(errors) == 7
    assert np.mean([*errors.values()]) < 0.1, errors


def test_a_ring_slows_attention_by_its_share() -> None:
    one, ring = jobs({**SHAPE, "cp": 1}), jobs({**SHAPE, "cp": 2})

    def attention(share: float) -> list[float]:
        compute = Compute(cluster_of("h100"), MEGATRON, ComputeConstants(ring_share=share))
        return [float(compute.forward(job).attention[0]) for job in (one, ring)]

    whole, halved = attention(1.0), attention(0.5)
    assert halved[0] == whole[0] == pytest.approx(2 * whole[1])
    assert halved[1] == pytest.approx(2 * whole[1])


class _Moved(TorchDispatchMode):
    """Bytes that kernels read and write."""

    num_bytes = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        if not op.is_view and "detach" not in op._schema.name:
            each = tree_flatten((args, kwargs, out))[0]
            self.num_bytes += sum(x.nbytes for x in each if isinstance(x, torch.Tensor))
        return out


def test_layers_of_single_operations_move_what_torchs_kernels_do_beyond_fused_ones() -> None:
    """Norms with residuals, rotation and gate as transformers' Llama has them, in 16 bits."""
    tokens, width = 256, 64

    def numbers(*shape: int) -> torch.Tensor:
        return torch.ones(shape or (tokens, width), dtype=torch.bfloat16, requires_grad=True)

    def norm(x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return numbers(width) * wide.bfloat16()

    def norms(x: torch.Tensor, *added: torch.Tensor) -> list[torch.Tensor]:
        rest = x + added[0].detach()
        before, behind = norm(x), norm(rest)  # read by three products and by two
        return [before, before, before, behind, behind, rest + added[1].detach()]

    def rotation(x: torch.Tensor, *angles: torch.Tensor) -> list[torch.Tensor]:
        one, other = x.chunk(2, -1)
        turned = torch.cat((-other, one), -1)
        return [x * angles[0].detach() + turned * angles[1].detach()]

    def gate(x: torch.Tensor, *up: torch.Tensor) -> list[torch.Tensor]:
        return [silu(x) * up[0]]

    fused = {norms: 20 + 24, rotation: 4 + 4, gate: 6 + 10}
    for (part, least), more in zip(fused.items(), ALONE, strict=True):
        inputs = [numbers(), numbers(), numbers()]
        with _Moved() as moved:
            outputs = part(*inputs)
        grads = [torch.ones_like(one) for one in outputs]
        with moved:
            torch.autograd.backward(outputs, grads)
        alone = moved.num_bytes / (tokens * width) - least
        assert alone / 3 == pytest.approx(more, rel=0.05)


def test_attention_without_a_flash_kernel_moves_what_torchs_kernels_do() -> None:
    """Scores, a softmax that masks them itself, dropout and values in 16 bits: of both passes a
    third, as a backward pass is priced as two forward passes."""
    length = 512
    query, key, value = (
        torch.ones(1, length, 1, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    with _Moved() as moved:
        kept, _ = torch.native_dropout(torch.bmm(query, key.mT).softmax(-1), 0.1, True)
        out = torch.bmm(kept, value)
    grad = torch.ones_like(out)
    with moved:
        out.backward(grad)
    each = moved.num_bytes / length**2
    assert each / 3 == pytest.approx(ComputeConstants().score_bytes, rel=0.05)


def test_fused_kernels_and_chunked_losses_move_less() -> None:
    shape = {**SHAPE, "gated": True, "chunked_loss": np.array([False, True])}
    one = jobs(shape)
    eager, fused = (
        Compute(cluster_of("H100-80GB"), FRAMEWORKS["fsdp"].with_habits(autocast_layers=how),
                ComputeConstants()).forward(one).elementwise
        for how in (True, False)
    )  # fmt: skip
    assert eager[0] > 1.5 * fused[0] and eager[1] == fused[0] == fused[1]
