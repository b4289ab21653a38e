"""Block quantization in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.formats import BLOCK, Format


def quantize(rows: Tensor, fmt: Format, out: Tensor | None = None) -> Tensor:
    """(r, n) floating-point to (r, ``fmt.num_bytes(n)``) uint8, each row by itself."""
    r, n = rows.shape
    largest = 2 ** (fmt.bits - 1) - 1
    blocks = F.pad(rows.float(), (0, -n % BLOCK)).view(r, -1, BLOCK)
    scales = blocks.abs().amax(-1, keepdim=True) / largest
    codes = torch.where(scales > 0, (blocks / scales).round(), 0.0).to(torch.int8)
    codes = codes.view(r, -1)[:, :n]
    if fmt.bits == 4:
        codes = F.pad(codes, (0, n % 2)) & 15
        codes = codes[:, 0::2] | (codes[:, 1::2] << 4)
    codes = F.pad(codes.contiguous().view(torch.uint8), (0, -codes.size(1) % 4))
    packed = torch.cat((codes, scales.view(r, -1).contiguous().view(torch.uint8)), 1)
    return packed if out is None else out.copy_(packed)


def _decode(packed: Tensor, fmt: Format, n: int) -> Tensor:
    r, num_codes = packed.size(0), -(-n * fmt.bits // 8)
    codes = packed[:, :num_codes].contiguous().view(torch.int8)
    scales = packed[:, -(-num_codes // 4) * 4 :].contiguous().view(torch.float32)
    if fmt.bits == 4:
        codes = torch.stack(((codes << 4) >> 4, codes >> 4), -1).view(r, -1)[:, :n]
    blocks = F.pad(codes.float(), (0, -n % BLOCK)).view(r, -1, BLOCK)
    return (blocks * scales[..., None]).view(r, -1)[:, :n]


def dequantize(packed: Tensor, fmt: Format, out: Tensor) -> Tensor:
    """What ``quantize`` made of (r, n), into ``out`` of that shape."""
    return out.copy_(_decode(packed, fmt, out.size(1)))


def dequantize_sum(packed: Tensor, fmt: Format, out: Tensor, accumulate: bool = False) -> Tensor:
    """The sum of the rows, into or added to ``out`` (n,)."""
    total = _decode(packed, fmt, out.numel()).sum(0)
    return out.add_(total) if accumulate else out.copy_(total)
