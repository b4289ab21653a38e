"""What the tests ask of the GPUs' kernels on a machine without a GPU, in a process of its own.

``interpret FILE``: fills the outputs of the cases in a file, in Triton's interpreter.
``compile``: compiles all kernels for NVIDIA and AMD; a line each, with the fused operations found.
"""

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


def compile_all() -> None:
    import triton
    from triton.backends.compiler import GPUTarget

    from trainer.quantization import gpu as kernels

    targets = GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx90a", 64)  # H100, MI250
    pointers = {"codes": "*i8", "scales": "*fp32"}
    used = {
        kernels._quantize: {"rows": "*i16", **pointers},
        kernels._dequantize: {"out": "*i16", **pointers},
        kernels._dequantize_sum: {"out": "*fp32", **pointers},
    }
    for target in targets:
        for kernel, types in used.items():
            for bits in (4, 8):
                names = kernel.arg_names
                constants = {(names.index("BITS"),): bits}
                if "ADD" in names:
                    constants[names.index("ADD"),] = True
                signature = {name: types.get(name, "i32") for name in names}
                signature |= {names[index]: "constexpr" for (index,) in constants}
                aligned = {
                    (index,): [["tt.divisibility", 16]]
                    for index in range(len(names))
                    if (index,) not in constants
                }
                source = triton.compiler.ASTSource(kernel, signature, constants, aligned)
                code = triton.compile(source, target=target, options=kernels.OPTIONS).asm
                fused = code.get("ptx", "").count("fma")
                wide = code.get("ptx", code.get("amdgcn")).count("v4.b32")
                print(target.arch, kernel.__name__, bits, fused, wide)


if __name__ == "__main__":
    if sys.argv[1] == "interpret":
        interpret(sys.argv[2])
    else:
        compile_all()
