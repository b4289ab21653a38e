"""Block quantization on GPUs, NVIDIA's and AMD's: Triton kernels of ``quantization.blocks``.

Kernels read input and write output once; a program takes ``TILE`` blocks of a row. bfloat16 is
handled as 16 bits: Triton's interpreter (``TRITON_INTERPRET=1``, on CPUs) rounds it differently.
"""

# ruff: noqa: N803, N806 (Triton's compile-time constants are written in capitals)

from __future__ import annotations

import contextlib

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.plan.formats import BLOCK, Format
from trainer.quantization.reference import code_bytes

TILE = 8
"""Blocks per program: 16 numbers per thread, so that reads are as wide as the hardware allows."""

OPTIONS = {
    "num_warps": 4,
    "enable_fp_fusion": False,  # a code is round(x * inverse), rounded twice on every device
}

_BLOCK = tl.constexpr(BLOCK)
_TILE = tl.constexpr(TILE)
_ROUND = tl.constexpr(12582912.0)  # 1.5 * 2**23: adding it rounds to an integer, half to even
_SIGNLESS = tl.constexpr(0x7FFFFFFF)
_INFINITY = tl.constexpr(0x7F800000)
_NAN = tl.constexpr(0x7FC00000)
_SMALLEST = tl.constexpr(torch.finfo(torch.float32).tiny)


def load() -> None:
    """Run each kernel once on the current device; raises what compiling or launching it raises."""
    numbers = torch.zeros(1, BLOCK, device="cuda")
    for fmt in (Format.INT8, Format.INT4):
        packed = torch.empty(1, fmt.num_bytes(BLOCK), dtype=torch.uint8, device="cuda")
        quantize(numbers, fmt, packed)
        dequantize(packed, fmt, numbers)
        dequantize_sum(packed, fmt, numbers[0], accumulate=True)


def quantize(rows: Tensor, fmt: Format, out: Tensor) -> None:
    """See ``trainer.quantization.blocks``, which checks the arguments; so the others here."""
    count, n = rows.shape
    codes, scales = _parts(out, fmt, n)
    with _on(rows):
        _quantize[_grid(count, n)](
            _bits(rows), codes, scales, n, code_bytes(fmt, n), out.shape[1], fmt.bits, **OPTIONS
        )


def dequantize(packed: Tensor, fmt: Format, out: Tensor) -> None:
    count, n = out.shape
    codes, scales = _parts(packed, fmt, n)
    with _on(out):
        _dequantize[_grid(count, n)](
            codes, scales, _bits(out), n, packed.shape[1], out.stride(0), fmt.bits, **OPTIONS
        )


def dequantize_sum(packed: Tensor, fmt: Format, out: Tensor, accumulate: bool) -> None:
    n = out.numel()
    codes, scales = _parts(packed, fmt, n)
    with _on(out):
        _dequantize_sum[_grid(1, n)](
            codes, scales, out, n, packed.shape[1], packed.shape[0], fmt.bits, accumulate,
            **OPTIONS,
        )  # fmt: skip


def _parts(packed: Tensor, fmt: Format, n: int) -> tuple[Tensor, Tensor]:
    """The first row's codes as int8, and its scales; other rows follow at a row's distance."""
    flat = packed.view(-1)
    return flat.view(torch.int8), flat[code_bytes(fmt, n) :].view(torch.float32)


def _bits(numbers: Tensor) -> Tensor:
    return numbers.view(torch.int16) if numbers.dtype == torch.bfloat16 else numbers


def _grid(count: int, n: int) -> tuple[int]:
    return (count * triton.cdiv(n, TILE * BLOCK),)


def _on(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Context that makes the tensor's device the current one, on which kernels run."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


# ---- kernels. BITS: 8 or 4. ADD: to what out holds. WHOLE: the tile ends within the row, which
# ---- leaves reads and writes without masks and hence wide. A tile: its blocks x a block's bytes.


@triton.jit
def _quantize(rows, codes, scales, n, end, row_bytes, BITS: tl.constexpr):
    row, first = _place(n)
    rows += row * n
    codes += row * row_bytes
    scales += row * (row_bytes // 4)
    if (first + _TILE) * _BLOCK <= n:
        _quantize_tile(rows, codes, scales, first, n, end, BITS, True)
    else:
        _quantize_tile(rows, codes, scales, first, n, end, BITS, False)


@triton.jit
def _dequantize(codes, scales, out, n, row_bytes, stride, BITS: tl.constexpr):
    row, first = _place(n)
    codes += row * row_bytes
    scales += row * (row_bytes // 4)
    out += row * stride
    if (first + _TILE) * _BLOCK <= n:
        _dequantize_tile(codes, scales, out, first, n, BITS, True)
    else:
        _dequantize_tile(codes, scales, out, first, n, BITS, False)


@triton.jit
def _dequantize_sum(codes, scales, out, n, row_bytes, rows, BITS: tl.constexpr, ADD: tl.constexpr):
    _, first = _place(n)
    if (first + _TILE) * _BLOCK <= n:
        _sum_tile(codes, scales, out, first, n, row_bytes, rows, BITS, ADD, True)
    else:
        _sum_tile(codes, scales, out, first, n, row_bytes, rows, BITS, ADD, False)


@triton.jit
def _place(n):
    """This program's row and first block."""
    tiles = tl.cdiv(n, _TILE * _BLOCK)
    program = tl.program_id(0).to(tl.int64)
    return program // tiles, program % tiles * _TILE


@triton.jit
def _quantize_tile(rows, codes, scales, first, n, end, BITS: tl.constexpr, WHOLE: tl.constexpr):
    block, column, width, size, _ = _columns(first, n, BITS, WHOLE)
    start = rows + block * _BLOCK
    low = _load(start + column, column < width, WHOLE)
    largest = _absmax(low)
    if BITS == 4:
        high = _load(start + width + column, (column < width) & (width + column < size), WHOLE)
        largest = tl.maximum(largest, _absmax(high))
    scale, inverse = _scale(largest, 2 ** (BITS - 1) - 1)
    byte = _encode(low, inverse)
    if BITS == 4:
        byte = (byte & 15) | (_encode(high, inverse) << 4)
    at = block * (_BLOCK * BITS // 8) + column
    if WHOLE:
        tl.store(codes + at, byte.to(tl.int8))
        tl.store(scales + block, scale)
    else:  # beyond the numbers, up to where the scales begin, codes are 0
        tl.store(codes + at, byte.to(tl.int8), mask=at < end)
        tl.store(scales + block, scale, mask=size > 0)


@triton.jit
def _dequantize_tile(codes, scales, out, first, n, BITS: tl.constexpr, WHOLE: tl.constexpr):
    block, column, width, size, _ = _columns(first, n, BITS, WHOLE)
    low, high = _decode(codes, scales, block, column, width, size, BITS, WHOLE)
    start = out + block * _BLOCK
    _store(start + column, low, column < width, WHOLE)
    if BITS == 4:
        _store(start + width + column, high, (column < width) & (width + column < size), WHOLE)


@triton.jit
def _sum_tile(
    codes, scales, out, first, n, row_bytes, rows,
    BITS: tl.constexpr, ADD: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    block, column, width, size, zeros = _columns(first, n, BITS, WHOLE)
    start = out + block * _BLOCK
    low_mask = column < width
    high_mask = low_mask & (width + column < size)
    low_sum = zeros
    high_sum = zeros
    if ADD:
        low_sum = _load(start + column, low_mask, WHOLE)
        if BITS == 4:
            high_sum = _load(start + width + column, high_mask, WHOLE)
    for _ in range(rows):
        low, high = _decode(codes, scales, block, column, width, size, BITS, WHOLE)
        low_sum += low
        high_sum += high
        codes += row_bytes
        scales += row_bytes // 4
    _store(start + column, low_sum, low_mask, WHOLE)
    if BITS == 4:
        _store(start + width + column, high_sum, high_mask, WHOLE)


@triton.jit
def _columns(first, n, BITS: tl.constexpr, WHOLE: tl.constexpr):
    """Blocks and bytes of a tile: index, byte, bytes in the block, numbers in it, and zeros."""
    WIDTH: tl.constexpr = _BLOCK * BITS // 8
    block = first + tl.arange(0, _TILE)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    zeros = tl.zeros((_TILE, WIDTH), tl.float32)
    size = tl.minimum(n - block * _BLOCK, _BLOCK)  # not positive beyond the row
    width = (size * BITS + 7) // 8
    if WHOLE:  # as constants, which spare arithmetic and keep addresses aligned
        size = _BLOCK
        width = WIDTH
    return block, column, width, size, zeros


@triton.jit
def _absmax(x):
    """Largest magnitude, compared as integers, which order finite < inf < NaN."""
    return tl.max(x.to(tl.int32, bitcast=True) & _SIGNLESS, axis=1, keep_dims=True)


@triton.jit
def _scale(largest, LEVELS: tl.constexpr):
    """The scale, and its inverse: 0 where all codes are 0."""
    levels = tl.full(largest.shape, LEVELS, tl.float32)
    scale = tl.div_rn(largest.to(tl.float32, bitcast=True), levels)
    scale = (scale.to(tl.int32, bitcast=True) & -128).to(tl.float32, bitcast=True)
    finite = largest < _INFINITY
    used = finite & (scale >= _SMALLEST)
    one = tl.full(largest.shape, 1.0, tl.float32)
    inverse = tl.where(used, tl.div_rn(one, tl.where(used, scale, one)), 0.0)
    bits = tl.where(used, scale.to(tl.int32, bitcast=True), tl.where(finite, 0, _NAN))
    return bits.to(tl.float32, bitcast=True), inverse


@triton.jit
def _encode(x, inverse):
    code = (x * inverse + _ROUND).to(tl.int32, bitcast=True)
    return tl.where(inverse > 0, code, 0)  # inf * 0 is no number


@triton.jit
def _decode(
    codes, scales, block, column, width, size, BITS: tl.constexpr, WHOLE: tl.constexpr
):  # fmt: skip
    at = codes + block * (_BLOCK * BITS // 8) + column
    if WHOLE:
        byte = tl.load(at).to(tl.int32)
        scale = tl.load(scales + block)
    else:
        byte = tl.load(at, mask=column < width, other=0).to(tl.int32)
        scale = tl.load(scales + block, mask=size > 0, other=0.0)
    if BITS == 8:
        value = byte.to(tl.float32) * scale
        return value, value
    return ((byte << 28) >> 28).to(tl.float32) * scale, (byte >> 4).to(tl.float32) * scale


@triton.jit
def _load(pointer, mask, WHOLE: tl.constexpr):
    x = tl.load(pointer) if WHOLE else tl.load(pointer, mask=mask, other=0)
    if x.dtype == tl.int16:
        return (x.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@triton.jit
def _store(pointer, value, mask, WHOLE: tl.constexpr):
    if pointer.dtype.element_ty == tl.int16:
        bits = value.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        value = tl.where((bits & _SIGNLESS) > _INFINITY, 0x7FC0, rounded).to(tl.int16)
    else:
        value = value.to(pointer.dtype.element_ty)
    if WHOLE:
        tl.store(pointer, value)
    else:
        tl.store(pointer, value, mask=mask)
