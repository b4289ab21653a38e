"""``FILE``: fills the outputs of the cases in a file, in Triton's interpreter."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import torch


def run_case(kernels: ModuleType, case: dict[str, Any]) -> None:
    """Fill a case's outputs."""
    kernels.quantize(case["x"], case["fmt"], case["packed"])
    kernels.dequantize(case["packed"], case["fmt"], case["decoded"])
    for accumulate, out in enumerate(case["sums"]):
        kernels.dequantize_sum(case["packed"], case["fmt"], out, bool(accumulate))


def interpret(file: str) -> None:
    os.environ["TRITON_INTERPRET"] = "1"  # is read when triton is imported
    from trainer.quantization import gpu as quantization_triton

    cases = torch.load(file, weights_only=False)
    for case in cases:
        run_case(quantization_triton, case)
    torch.save(cases, file)


if __name__ == "__main__":
    interpret(sys.argv[1])
