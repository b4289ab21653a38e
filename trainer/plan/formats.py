"""Number formats of stored and communicated tensors, with their bytes. Torch-free."""

from __future__ import annotations

from enum import StrEnum

BLOCK = 256  # elements per scale in quantized formats (Dettmers et al. 2022)

_SCALE_BYTES = 4
_BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "int8": 8, "int4": 4}


class Format(StrEnum):
    """A number format; quantized ones are symmetric, with one float32 scale per block."""

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
        """Bits per element, without scales."""
        return _BITS[self.value]

    @property
    def bits_with_scales(self) -> float:
        """Bits per element of a long tensor, scales included."""
        return self.bits + (8 * _SCALE_BYTES / BLOCK if self.quantized else 0)

    def num_bytes(self, numel: int) -> int:
        """Bytes of ``numel`` elements: of a tensor, or of one quantized row.

        A quantized row is one buffer, for one collective: codes padded to 4 bytes, then scales.
        """
        codes = -(-numel * self.bits // 8)
        if not self.quantized:
            return codes
        return -(-codes // 4) * 4 + _SCALE_BYTES * -(-numel // BLOCK)
