"""Number formats in which tensors are stored and sent, and the bytes they take. Torch-free."""

from __future__ import annotations

from enum import StrEnum

BLOCK = 256
"""Numbers that share a scale in the quantized formats (blocks as in Dettmers et al. 2022)."""

_SCALE_BYTES = 4
_BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "int8": 8, "int4": 4}


class Format(StrEnum):
    """A number format; the quantized ones are symmetric, with one float32 scale a block."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def quantized(self) -> bool:
        return self in (Format.INT8, Format.INT4)

    @property
    def bits(self) -> int:
        """Bits of one number, without scales."""
        return _BITS[self.value]

    @property
    def bits_with_scales(self) -> float:
        """Bits of one number in a long tensor, its share of the scale included."""
        return self.bits + (8 * _SCALE_BYTES / BLOCK if self.quantized else 0)

    def num_bytes(self, numel: int) -> int:
        """Bytes of ``numel`` numbers as one tensor, or as one row of a quantized one.

        A quantized row is the codes, filled up to a multiple of 4 bytes, then the scales: one
        piece of memory, so that one collective carries both.
        """
        codes = -(-numel * self.bits // 8)
        if not self.quantized:
            return codes
        return -(-codes // 4) * 4 + _SCALE_BYTES * -(-numel // BLOCK)
