"""Block quantization for quantized collectives.

A row of n numbers becomes ``Format.num_bytes(n)`` bytes: the codes of its blocks of 256 numbers,
padded with zeros to a multiple of 4 bytes, then one float32 scale per block (blocks as in Dettmers
et al. 2022, "8-bit Optimizers via Block-wise Quantization", symmetric and linear as in ZeRO++, Wang
et al. 2023). With L = 127 (INT8) or 7 (INT4):

    scale = absmax / L, of which the last 7 bits of the significand are set to zero
    code  = round(x * (1 / scale)), half to even, in float32
    x'    = code * scale

* |x - x'| <= absmax / 254 (INT8) or absmax / 14 (INT4), to 1e-4 of that for float32's rounding,
  and before x' is rounded to its dtype.
* ``code * scale`` is exact in float32, since the scale has 17 significant bits. So quantizing what
  was decoded to float32 gives the same bytes, and a device that fuses a multiplication with an
  addition gives the same sums as one that does not.
* A block that holds inf or NaN decodes to NaN throughout: an overflow is never hidden.
* A block whose scale is below the normal float32 numbers decodes to zeros.
* An INT4 block of m numbers keeps in byte i the codes i (low half) and ceil(m/2) + i (high half).

Every device makes the same bytes: by ``cpu.c`` on CPUs, by Triton kernels on NVIDIA's and AMD's
GPUs, and where neither is available, with a warning, by plain torch.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from types import ModuleType

import torch
from torch import Tensor

from trainer.plan.formats import Format
from trainer.quantization import reference

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def quantize(rows: Tensor, fmt: Format, out: Tensor | None = None) -> Tensor:
    """Quantize every row of (r, n), contiguous, into (r, ``fmt.num_bytes(n)``) uint8.

    Raises ValueError, as all here, if a tensor or the format does not fit.
    """
    _check(rows.is_contiguous(), "rows must be contiguous, but have strides", rows.stride())
    out = _fitting("rows", rows, fmt, out)
    if rows.numel():
        kernels_for(rows.device.type).quantize(rows.detach(), fmt, out)
    return out


def dequantize(packed: Tensor, fmt: Format, out: Tensor) -> Tensor:
    """Decode every row into (r, n), each row contiguous."""
    contiguous = out.size(-1) <= 1 or out.stride(-1) == 1
    _check(contiguous, "out's rows must be contiguous, but it has strides", out.stride())
    _fitting("out", out, fmt, packed)
    if out.numel():
        kernels_for(out.device.type).dequantize(packed, fmt, out.detach())
    return out


def dequantize_sum(packed: Tensor, fmt: Format, out: Tensor, accumulate: bool = False) -> Tensor:
    """Sum the decoded rows in their order into (n,), contiguous float32; ``accumulate``: add to it.

    This is a reduce-scatter's reduction.
    """
    _check(out.dtype == torch.float32, "out must be float32, but is", out.dtype)
    _check(out.is_contiguous(), "out must be contiguous, but has strides", out.stride())
    _fitting("out", out, fmt, packed, dims=1)
    if out.numel():
        kernels_for(out.device.type).dequantize_sum(packed, fmt, out.detach(), accumulate)
    return out


_MODULES = {
    "cpu": ("cpu", "install a C compiler, or name one in CC"),
    "cuda": ("gpu", "pip install triton, and a C compiler on PATH or in CC"),
}
"""Module of each type of device, and what it needs."""


@functools.cache
def kernels_for(device_type: str) -> ModuleType:
    """Module for a type of device; plain torch's, with one warning, if its kernels fail to load."""
    if device_type not in _MODULES:
        return reference
    name, remedy = _MODULES[device_type]
    try:
        kernels = importlib.import_module(f"trainer.quantization.{name}")
        kernels.load()
    except Exception as error:  # no C compiler on this node, no Triton, no such GPU
        warnings.warn(
            f"no compiled quantization on this {name.upper()}, which makes it several times "
            f"slower: {type(error).__name__}: {error} (remedy: {remedy})",
            RuntimeWarning,
            stacklevel=3,
        )
        return reference
    return kernels


def _check(good: bool, complaint: str, found: object) -> None:
    if not good:
        raise ValueError(f"{complaint} {found}")


def _fitting(
    name: str, numbers: Tensor, fmt: Format, packed: Tensor | None, dims: int = 2
) -> Tensor:
    """Quantized rows that fit the numbers: ``packed``, once checked, or new ones."""
    shape = tuple(numbers.shape)
    _check(len(shape) == dims, f"{name} must have {dims} dims, but is", shape)
    wrong = f"{name} must be float32, bfloat16 or float16, but is"
    _check(numbers.dtype in DTYPES, wrong, numbers.dtype)
    _check(fmt.quantized, "the format must be int8 or int4, not", fmt)
    rows, n = shape if dims == 2 or packed is None else (packed.shape[0], *shape)
    wanted = (rows, fmt.num_bytes(n))
    if packed is None:
        return torch.empty(wanted, dtype=torch.uint8, device=numbers.device)
    wrong = f"{rows} rows of {n} numbers in {fmt} take a tensor of {wanted}, but this one is"
    _check(packed.shape == wanted, wrong, tuple(packed.shape))
    _check(packed.dtype == torch.uint8, "quantized rows are uint8, not", packed.dtype)
    _check(packed.is_contiguous(), "quantized rows must be contiguous, not", packed.stride())
    offset = packed.storage_offset()
    _check(offset % 4 == 0, "quantized rows must begin at a multiple of 4 bytes, not", offset)
    wrong = f"{name} is on {numbers.device}, but the quantized rows on"
    _check(packed.device == numbers.device, wrong, packed.device)
    return packed
