"""The quantization kernels compiled for six GPUs, without one: registers, spills, shared memory.

python -m benchmarks.trainer.triton_kernels             # a JSON object per variant
python -m benchmarks.trainer.triton_kernels --quick     # one dtype and alignment
python -m benchmarks.trainer.triton_kernels --table     # into docs/results/gpu-kernels.md
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import triton
import triton.backends.nvidia
from triton.backends.compiler import GPUTarget

from benchmarks.trainer import gpu_tables
from trainer.quantization import gpu

ARCHITECTURES = {"sm80": 80, "sm90": 90, "sm100": 100, "gfx90a": "", "gfx942": "", "gfx950": ""}
POINTERS = {"codes": "*i8", "scales": "*fp32"}
NUMBERS = {"fp32": "*fp32", "bf16": "*i16", "fp16": "*fp16"}
KERNELS = {"_quantize": "rows", "_dequantize": "out", "_dequantize_sum": "out"}
_NVIDIA = Path(triton.backends.nvidia.__file__).parent / "bin"
_AMD_SIZES = {"registers": "vgpr_count", "spills": "vgpr_spill_count"}

Variant = tuple[str, str, str, int, bool, bool]
"""Architecture, kernel, dtype, bits, whether it adds to out, whether sizes are multiples of 16."""


def variants(quick: bool = False) -> Iterator[Variant]:
    """All that a run may ask for."""
    for architecture, kernel in product(ARCHITECTURES, KERNELS):
        sums = kernel == "_dequantize_sum"
        dtypes = ["fp32"] if sums else ["bf16"] if quick else [*NUMBERS]
        adds = (True,) if quick else (True, False)
        aligned = (True,) if quick else (True, False)
        for dtype, bits, add, whole in product(dtypes, (4, 8), adds if sums else (False,), aligned):
            if not quick or bits == 4 or kernel == "_quantize":
                yield architecture, kernel, dtype, bits, add, whole


def compiled(variant: Variant) -> dict[str, Any]:
    """A variant's use of a multiprocessor, and how its code computes and moves."""
    architecture, name, dtype, bits, add, whole = variant
    kernel = getattr(gpu, name)
    names = kernel.arg_names
    given: dict[str, Any] = {"BITS": bits, **({"ADD": add} if "ADD" in names else {})}
    constants = {(names.index(key),): value for key, value in given.items()}
    types = {**POINTERS, KERNELS[name]: NUMBERS[dtype], **dict.fromkeys(given, "constexpr")}
    signature = {key: types.get(key, "i32") for key in names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, key in enumerate(names)
        if key not in given and (whole or signature[key].startswith("*"))
    }
    nvidia = architecture.startswith("sm")
    target = (
        GPUTarget("cuda", ARCHITECTURES[architecture], 32)
        if nvidia
        else GPUTarget("hip", architecture, 64)
    )
    source = triton.compiler.ASTSource(kernel, signature, constants, aligned)
    code = triton.compile(source, target=target, options=gpu.OPTIONS)
    sizes = machine_code(code.asm["ptx"], architecture) if nvidia else _amd(code.asm["amdgcn"])
    return {"variant": variant, "shared": code.metadata.shared, **sizes}


def machine_code(ptx: str, architecture: str) -> dict[str, int]:
    """Use of a multiprocessor by a kernel on an NVIDIA GPU, as ptxas says it."""
    assembler = _NVIDIA / ("ptxas-blackwell" if architecture == "sm100" else "ptxas")
    name = f"sm_{architecture[2:]}{'' if architecture == 'sm80' else 'a'}"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        argv = [str(assembler), "-v", f"--gpu-name={name}", file.name, "-o", "/dev/null"]
        told = subprocess.run(argv, capture_output=True, text=True, check=True).stderr
    return {
        "registers": _number(r"Used (\d+) registers", told),
        "spills": _number(r"(\d+) bytes spill stores", told),
        "fused": len(re.findall(r"\bfma\.", ptx)),
        "wide": ptx.count("v4.b32"),
    }


def _amd(code: str) -> dict[str, int]:
    sizes = {key: _number(rf"\.{name}:\s*(\d+)", code) for key, name in _AMD_SIZES.items()}
    fused = len(re.findall(r"v_(?:pk_)?fma_f32|v_fmac_f32|v_mac_f32", code))
    wide = len(re.findall(r"(?:load|store)_dwordx4", code))
    return {**sizes, "fused": fused, "wide": wide}


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, f"no {pattern} in {text[:500]}"
    return int(found[1])


def main() -> None:
    """Compile, and print or write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    found = [compiled(variant) for variant in variants(args.quick)]
    if args.table:
        head = "| GPU | kernel | variants | registers | bytes spilled | bytes shared |"
        gpu_tables.write("triton", head, gpu_tables.grouped(found))
    else:
        sys.stdout.writelines(json.dumps(one) + "\n" for one in found)


if __name__ == "__main__":
    main()
