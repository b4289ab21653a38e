"""Block quantization: what the numbers are, compiled and in plain torch, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from trainer.plan.formats import BLOCK, Format
from trainer.quantization import (
    blocks as quantization,
    cpu as quantization_cpu,
    reference as quantization_torch,
)
from trainer.quantization.blocks import DTYPES, dequantize, dequantize_sum, quantize

FORMATS = (Format.INT8, Format.INT4)
LEVELS = {Format.INT8: 127, Format.INT4: 7}

sizes = st.integers(1, 1100)
rows = st.integers(1, 3)
formats = st.sampled_from(FORMATS)
dtypes = st.sampled_from(DTYPES)
kinds = st.sampled_from(("normal", "scaled", "any bits"))
seeds = st.integers(0, 2**31)
quick = settings(max_examples=100)


def decoded(x: Tensor, fmt: Format, dtype: torch.dtype = torch.float32) -> Tensor:
    return dequantize(quantize(x, fmt), fmt, torch.empty(x.shape, dtype=dtype))


def by_block(x: Tensor) -> Tensor:
    """(r, blocks, 256), the last one filled up with zeros."""
    x = torch.nn.functional.pad(x, (0, -x.shape[1] % BLOCK))
    return x.view(x.shape[0], -1, BLOCK)


@pytest.fixture(params=[quantization_cpu, quantization_torch], ids=["compiled", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """For tests that hold on the compiled kernel and on plain torch."""
    if request.param not in (quantization_torch, quantization.kernels_for("cpu")):
        pytest.skip("no C compiler")
    monkeypatch.setattr(quantization, "kernels_for", lambda device: request.param)
    return request.param


# ---- what the numbers are ----


@quick
@given(sizes, rows, dtypes, formats, kinds, seeds)
def test_decoded_numbers_are_as_near_as_promised(numbers, n, count, dtype, fmt, kind, seed) -> None:
    x = numbers(count, n, dtype, kind, seed)
    blocks, errors = by_block(x.double()), by_block((decoded(x, fmt).double() - x.double()).abs())
    absmax = blocks.abs().amax(2, keepdim=True)
    tiny = torch.finfo(torch.float32).tiny
    bound = absmax / (2 * LEVELS[fmt]) * (1 + 1e-4)
    bound = torch.where(absmax < LEVELS[fmt] * tiny, absmax, bound)  # those decode to zeros
    finite = absmax.isfinite().expand_as(blocks)
    assert (errors <= bound)[finite].all()


@quick
@given(sizes, rows, formats, kinds, seeds)
def test_quantizing_what_was_decoded_gives_the_same_bytes(
    numbers, n, count, fmt, kind, seed
) -> None:
    packed = quantize(numbers(count, n, torch.float32, kind, seed), fmt)
    again = quantize(dequantize(packed, fmt, torch.empty(count, n)), fmt)
    assert torch.equal(again, packed)


@quick
@given(sizes, st.integers(2, 4), dtypes, formats, kinds, seeds)
def test_every_row_is_quantized_by_itself(numbers, n, count, dtype, fmt, kind, seed) -> None:
    x = numbers(count, n, dtype, kind, seed)
    packed = quantize(x, fmt)
    for index in range(count):
        assert torch.equal(packed[index], quantize(x[index : index + 1], fmt)[0])


@quick
@given(sizes, st.sampled_from(DTYPES[1:]), formats, kinds, seeds)
def test_the_bytes_depend_on_the_numbers_and_not_on_their_dtype(
    numbers, n, dtype, fmt, kind, seed
) -> None:
    x = numbers(1, n, dtype, kind, seed)
    assert torch.equal(quantize(x, fmt), quantize(x.float(), fmt))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_block_with_an_overflow_decodes_to_nan_and_its_neighbours_do_not(
    path, fmt, dtype, bad
) -> None:
    x = torch.ones(2, 3 * BLOCK + 5, dtype=dtype)
    x[0, BLOCK + 9] = x[1, -1] = bad
    result = decoded(x, fmt, dtype)
    expected = x.clone()
    expected[0, BLOCK : 2 * BLOCK] = expected[1, 3 * BLOCK :] = torch.nan
    # 1 is not a multiple of a scale: it comes back to within the format.
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.allclose(result, expected, rtol=0.01, equal_nan=True)
    total = dequantize_sum(quantize(x, fmt), fmt, torch.zeros(x.shape[1]))
    assert torch.equal(total.isnan(), expected.isnan().any(0))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 2**-149 * 6, 1e-38, 1.17e-38, -1e-40])
def test_zeros_and_denormals_decode_to_zeros(path, fmt, value) -> None:
    x = torch.full((1, BLOCK + 1), value)
    assert torch.equal(decoded(x, fmt), torch.zeros_like(x))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_numbers_stay_finite(path, fmt, dtype) -> None:
    largest = torch.finfo(dtype).max
    x = torch.linspace(-1, 1, BLOCK, dtype=torch.float64).mul(largest).to(dtype)[None]
    assert decoded(x, fmt).isfinite().all()


def test_halves_are_rounded_to_even(path) -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5, 126.5]])
    assert decoded(x, Format.INT8).tolist() == [[127.0, 0, 2, 2, 4, 0, -2, -2, 126]]
    x = torch.tensor([[7.0, 0.5, 1.5, 2.5, -6.5, -5.5]])
    assert decoded(x, Format.INT4).tolist() == [[7.0, 0, 2, 2, -6, -6]]


@pytest.mark.parametrize("fmt", FORMATS)
def test_whole_numbers_up_to_the_largest_code_are_exact(path, fmt) -> None:
    most = LEVELS[fmt]
    for n in (2 * most + 1, BLOCK + 2 * most + 1):
        x = (torch.arange(n) % (2 * most + 1) - most).float()[None]
        x[0, -1] = most  # the last block's largest
        assert torch.equal(decoded(x, fmt), x)


def test_a_row_is_its_codes_padding_and_scales(path) -> None:
    x = torch.tensor([[127.0, -127.0, 1.0, 0.0, -2.0]])
    one = torch.ones(1).view(torch.uint8).tolist()
    assert quantize(x, Format.INT8)[0].tolist() == [127, 129, 1, 0, 254, 0, 0, 0, *one]
    x = torch.tensor([[7.0, -7.0, 1.0, -1.0, 3.0]])  # in halves: 7, -7, 1 and -1, 3
    assert quantize(x, Format.INT4)[0].tolist() == [0xF7, 0x39, 0x01, 0, *one]


@pytest.mark.parametrize("fmt", FORMATS)
def test_nothing_becomes_nothing(path, fmt) -> None:
    for shape in ((0, 0), (0, 5), (3, 0)):
        packed = quantize(torch.ones(shape), fmt)
        assert packed.shape == (shape[0], fmt.num_bytes(shape[1]))
        assert dequantize(packed, fmt, torch.ones(shape)).shape == shape
    packed = quantize(torch.ones(0, 5), fmt)
    assert dequantize_sum(packed, fmt, torch.ones(5)).tolist() == [0.0] * 5
    assert dequantize_sum(packed, fmt, torch.ones(5), accumulate=True).tolist() == [1.0] * 5


# ---- sums and places ----


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("accumulate", [False, True])
def test_a_sum_is_of_the_decoded_rows_in_float32(path, numbers, fmt, accumulate) -> None:
    x = numbers(8, 1000, torch.bfloat16, "normal", 3)
    before = torch.randn(1000, generator=torch.Generator().manual_seed(4))
    out = before.clone()
    assert dequantize_sum(quantize(x, fmt), fmt, out, accumulate) is out
    exact = decoded(x, fmt).double().sum(0) + accumulate * before
    assert torch.allclose(out.double(), exact, rtol=0, atol=1e-5)
    expected = before if accumulate else torch.zeros(1000)
    for row in decoded(x, fmt):
        expected = expected + row
    assert torch.equal(out, expected)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_may_be_decoded_into_a_slice_of_a_larger_tensor(path, numbers, fmt, dtype) -> None:
    x = numbers(3, 700, dtype, "normal", 5)
    large = torch.full((3, 900), 4.0, dtype=dtype)
    view = large[:, 100:800]
    assert dequantize(quantize(x, fmt), fmt, view) is view
    assert torch.equal(large[:, 100:800], decoded(x, fmt, dtype))
    large[:, 100:800] = 4
    assert (large == 4).all()


@pytest.mark.parametrize("fmt", FORMATS)
def test_quantize_writes_to_the_tensor_it_is_given_and_nowhere_else(path, numbers, fmt) -> None:
    x = numbers(2, 301, torch.float32, "normal", 6)
    memory = torch.full((4, fmt.num_bytes(301)), 77, dtype=torch.uint8)
    assert quantize(x, fmt, memory[1:3]).data_ptr() == memory[1:3].data_ptr()
    assert torch.equal(memory[1:3], quantize(x, fmt))
    assert (memory[0] == 77).all() and (memory[3] == 77).all()


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: quantize(torch.ones(4), Format.INT8), r"rows must have 2 dims, but is \(4,\)"),
        (lambda: quantize(torch.ones(4, 2).T, Format.INT8), "rows must be contiguous"),
        (lambda: quantize(torch.ones(1, 2).double(), Format.INT8), "but is torch.float64"),
        (lambda: quantize(torch.ones(1, 2), Format.BF16), "must be int8 or int4, not bf16"),
        (lambda: quantize(torch.ones(1, 2), Format.INT8, torch.ones(1, 8)), "uint8, not"),
        (
            lambda: dequantize(torch.zeros(1, 9, dtype=torch.uint8), Format.INT8, torch.ones(1, 2)),
            r"1 rows of 2 numbers in int8 take a tensor of \(1, 8\), but this one is \(1, 9\)",
        ),
        (
            lambda: dequantize(
                torch.zeros(16, dtype=torch.uint8)[1:9].view(1, 8), Format.INT8, torch.ones(1, 2)
            ),
            "multiple of 4 bytes, not 1",
        ),
        (
            lambda: dequantize(
                torch.zeros(2, 8, dtype=torch.uint8), Format.INT8, torch.ones(2, 2).T
            ),
            "out's rows must be contiguous",
        ),
        (
            lambda: dequantize_sum(
                torch.zeros(2, 8, dtype=torch.uint8), Format.INT8, torch.ones(2).half()
            ),
            "out must be float32, but is torch.float16",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_by_its_name(
    call: Callable[[], object], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        call()
