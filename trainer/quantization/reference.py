"""Block quantization in plain torch: the definition that the compiled kernels equal bit for bit.

It also runs where there is no kernel for a device. ``quantization.blocks`` checks the arguments.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from trainer.plan.formats import BLOCK, Format

_SIGNLESS = 0x7FFFFFFF
_INFINITY = 0x7F800000
_SCALE_MASK = ~0x7F  # 17 of the 24 bits of a float32's significand
_SMALLEST = torch.finfo(torch.float32).tiny


def quantize(rows: Tensor, fmt: Format, out: Tensor) -> None:
    """See ``trainer.quantization.blocks``; so the others here."""
    count, n = rows.shape
    x = pad(rows.float(), (0, -n % BLOCK)).view(count, -1, BLOCK)
    largest = (x.view(torch.int32) & _SIGNLESS).amax(2)  # as integers: finite < inf < NaN
    finite = largest < _INFINITY
    scale = largest.view(torch.float32) / (2 ** (fmt.bits - 1) - 1)
    scale = (scale.view(torch.int32) & _SCALE_MASK).view(torch.float32)
    used = finite & (scale >= _SMALLEST)
    codes = torch.where(used[..., None], (x * (1 / scale)[..., None]).round(), 0.0).to(torch.int8)
    scale = torch.where(used, scale, torch.where(finite, 0.0, torch.nan))
    codes = codes.view(count, -1)[:, :n] if fmt == Format.INT8 else _pack(codes, n)
    codes = codes.contiguous().view(torch.uint8)
    end = code_bytes(fmt, n)
    out[:, : codes.shape[1]] = codes
    out[:, codes.shape[1] : end] = 0
    out[:, end:] = scale.view(torch.uint8)


def dequantize(packed: Tensor, fmt: Format, out: Tensor) -> None:
    count, n = out.shape
    end = code_bytes(fmt, n)
    codes = packed[:, :end].view(torch.int8)
    codes = codes[:, :n] if fmt == Format.INT8 else _unpack(codes, n)
    scale = packed[:, end:].clone().view(torch.float32)
    codes = pad(codes, (0, -n % BLOCK)).view(count, -1, BLOCK)
    out.copy_((codes.float() * scale[..., None]).view(count, -1)[:, :n])


def dequantize_sum(packed: Tensor, fmt: Format, out: Tensor, accumulate: bool) -> None:
    if not accumulate:
        out.zero_()
    term = torch.empty_like(out)
    for row in packed:
        dequantize(row[None], fmt, term[None])
        out += term


def code_bytes(fmt: Format, n: int) -> int:
    """Bytes of a row before its scales."""
    return fmt.num_bytes(n) - 4 * -(-n // BLOCK)


def _pack(codes: Tensor, n: int) -> Tensor:
    """Two codes a byte: of a block of m, byte i holds codes i (low) and ceil(m/2) + i (high)."""
    count = codes.shape[0]
    halves = codes.view(count, -1, 2, BLOCK // 2)[:, : n // BLOCK]
    pieces = [(halves[:, :, 0] & 15 | halves[:, :, 1] << 4).reshape(count, -1)]
    if n % BLOCK:
        half = -(-(n % BLOCK) // 2)
        last = codes[:, -1]
        pieces.append(last[:, :half] & 15 | last[:, half : 2 * half] << 4)
    return torch.cat(pieces, dim=1)


def _unpack(codes: Tensor, n: int) -> Tensor:
    """The inverse of :func:`_pack`."""
    count = codes.shape[0]
    low, high = codes << 4 >> 4, codes >> 4
    end = n // BLOCK * (BLOCK // 2)
    whole = torch.stack(
        [half[:, :end].reshape(count, -1, BLOCK // 2) for half in (low, high)], dim=2
    ).reshape(count, -1)
    half = -(-(n % BLOCK) // 2)
    last = [low[:, end : end + half], high[:, end : end + half]]
    return torch.cat([whole, *last], dim=1)[:, :n]
