"""Products in FP8: codes of e4m3 with a scale for each row of either operand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainer.model import float8
from trainer.model.float8 import Float8Kernels
from trainer.model.kernels import Kernels
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError
from trainer.runtime.device import float8_of

E4M3 = torch.float8_e4m3fn
TOKENS, INPUTS, OUTPUTS = (7, 3), 64, 48  # 21 rows: no multiple of 16


def rounded(rows: Tensor) -> Tensor:
    """What FP8 leaves of a matrix in float32, row by row."""
    scale = rows.abs().amax(1, keepdim=True) / torch.finfo(E4M3).max
    return (rows / scale).to(E4M3).float() * scale


@pytest.fixture
def operands() -> tuple[Tensor, Tensor, Tensor]:
    """x, W and the gradient of y, in float32; rows differ in size by orders of magnitude."""
    torch.manual_seed(0)
    x = torch.randn(*TOKENS, INPUTS) * torch.logspace(-6, 6, 7)[:, None, None]
    return x, torch.randn(OUTPUTS, INPUTS), torch.randn(*TOKENS, OUTPUTS)


Compute = Callable[[Kernels, Tensor, Tensor, Tensor], Tensor]
PRODUCTS: dict[str, tuple[Compute, Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "outputs": (
        lambda kernels, x, w, g: kernels.outputs(x, w),
        lambda x, w, g: rounded(x.flatten(0, 1)) @ rounded(w).t(),
    ),
    "input gradient": (
        lambda kernels, x, w, g: kernels.input_gradient(g, w),
        lambda x, w, g: rounded(g.flatten(0, 1)) @ rounded(w.t()).t(),
    ),
    "weight gradient": (
        lambda kernels, x, w, g: kernels.weight_gradient(g, x, w),
        lambda x, w, g: rounded(g.flatten(0, 1).t()) @ rounded(x.flatten(0, 1).t()).t(),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_those_of_codes_with_a_scale_for_each_row(
    operands: tuple[Tensor, Tensor, Tensor], name: str
) -> None:
    compute, expected = PRODUCTS[name]
    found = compute(Float8Kernels(E4M3), *operands)
    wanted = expected(*operands).view_as(found)
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-5 * wanted.abs().max().item())
    exact = compute(Kernels(), *operands)
    error = (found - exact).norm() / exact.norm()
    assert 1e-3 < error < 2**-4  # three bits behind the first one


def test_rows_of_zeros_stay_zeros() -> None:
    found = Float8Kernels(E4M3).outputs(torch.zeros(2, 8, 16), torch.zeros(16, 16))
    assert found.eq(0).all()


class _LargestFloat32(TorchDispatchMode):
    """Sees how many numbers the largest result in float32 has."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        found = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor) and tensor.dtype == torch.float32:
                self.numbers = max(self.numbers, tensor.numel())
        return found


@pytest.mark.parametrize("transposed", [False, True])
def test_a_matrix_is_cast_some_rows_at_a_time(
    monkeypatch: pytest.MonkeyPatch, transposed: bool
) -> None:
    """Of a matrix in 16 bits there is no copy in float32, and no code differs for that."""
    matrix = torch.randn(48, 48).to(torch.bfloat16)
    matrix = matrix.t() if transposed else matrix
    whole = Float8Kernels(E4M3)._cast(matrix)
    monkeypatch.setattr(float8, "CAST_AT_ONCE", 5 * 48)
    with _LargestFloat32() as seen:
        parts = Float8Kernels(E4M3)._cast(matrix)
    assert seen.numbers == 5 * 48
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=0, atol=0)
    assert whole[0].is_contiguous()


def test_devices_without_fp8_refuse_it_with_the_reason() -> None:
    assert float8_of("NVIDIA H100", (9, 0)) == float8_of("NVIDIA B200", (10, 0)) == E4M3
    assert float8_of("AMD Instinct MI300X", (9, 4), "gfx942:sramecc+") == torch.float8_e4m3fnuz
    for name, capability, amd in (
        ("NVIDIA A100-SXM4-80GB", (8, 0), ""),
        ("AMD Instinct MI250X", (9, 0), "gfx90a:sramecc+:xnack-"),
    ):
        with pytest.raises(ConfigError, match=rf"fp8: {name} has no .* set precision: bf16"):
            float8_of(name, capability, amd)


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ({"tp": 4}, "hidden_size 32, .* of a part that tp 4 leaves"),
        ({"tune_kernels": True}, "tune_kernels True, compile False"),
        ({"compile": True}, "tune_kernels False, compile True"),
        ({"gx": 2}, "the grid gx 2, gy 1, gz 1"),
        ({"pp": 2, "pipeline_schedule": "InterleavedZeroBubble"}, "gas 1|precision fp8"),
    ],
)
def test_what_fp8_does_not_go_with_is_refused(values: dict[str, object], refused: str) -> None:
    shape = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "vocab_size": 32, "seq_length": 8}
    config = TrainConfig.parse({"model": shape, "data": "x", "precision": "fp8", **values})
    with pytest.raises(ConfigError, match=refused):
        config.check(4)
