"""Compiles and loads ``cpu.c``: block quantization on the CPU at the memory's speed.

Compiled once per machine type and user, at first use, and kept in ``$XDG_CACHE_HOME/meshtune``
(``~/.cache/meshtune``).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from trainer.plan.formats import Format
from trainer.runtime.cache import cpu_identity, user_cache

SOURCE = Path(__file__).with_name("cpu.c")
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # as the enum in the source
FLAGS = (
    "-O3", "-march=native", "-shared", "-fPIC", "-pthread",
    "-ffp-contract=off",  # for the same results everywhere
    "-fno-math-errno", "-fno-trapping-math",  # for vector code; NaN and inf stay
)  # fmt: skip
X86_FLAGS = ("-mprefer-vector-width=512",)  # if the CPU has them; up to 1.5 times as fast

NUMBERS_PER_THREAD = 2**18  # a thread with fewer takes longer to start than it saves


def quantize(rows: Tensor, fmt: Format, out: Tensor) -> None:
    """See ``trainer.quantization.blocks``, which checks the arguments; so the others here."""
    _call("quantize", rows, out, fmt)


def dequantize(packed: Tensor, fmt: Format, out: Tensor) -> None:
    _call("dequantize", out, packed, fmt)


def dequantize_sum(packed: Tensor, fmt: Format, out: Tensor, accumulate: bool) -> None:
    count, n = packed.shape[0], out.numel()
    threads = _threads(count * n)
    load().dequantize_sum(
        out.data_ptr(), packed.data_ptr(), fmt.bits, count, n, accumulate, threads
    )


def _call(function: str, numbers: Tensor, packed: Tensor, fmt: Format) -> None:
    count, n = numbers.shape
    threads = _threads(count * n)
    getattr(load(), function)(
        numbers.data_ptr(), packed.data_ptr(), DTYPES[numbers.dtype], fmt.bits,
        count, n, numbers.stride(0), threads,
    )  # fmt: skip


def _threads(numbers: int) -> int:
    most: int = torch.get_num_threads()
    return max(1, min(most, numbers // NUMBERS_PER_THREAD))


@functools.cache
def load() -> ctypes.CDLL:
    """The library, compiled now if need be; raises OSError if it cannot be."""
    library = ctypes.CDLL(str(build()))
    pointer, i32, i64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    for function in (library.quantize, library.dequantize):
        function.argtypes = [pointer, pointer, i32, i32, i64, i64, i64, i32]
        function.restype = None
    library.dequantize_sum.argtypes = [pointer, pointer, i32, i64, i64, i32, i32]
    library.dequantize_sum.restype = None
    return library


def build() -> Path:
    """The library, compiled unless an earlier process has; raises OSError if it cannot be."""
    compiler = _compiler()
    flags = FLAGS + (X86_FLAGS if platform.machine() == "x86_64" else ())
    version = _run([*compiler, "--version"])
    parts = [SOURCE.read_text(), version, " ".join([*compiler, *flags]), cpu_identity()]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    folder = user_cache()
    library = folder / f"quantization-{digest}.so"
    if not library.exists():
        # Ranks start together: each compiles to a file of its own, and the last one's stays.
        handle, name = tempfile.mkstemp(suffix=".so", dir=folder)
        os.close(handle)
        try:
            _run([*compiler, *flags, str(SOURCE), "-o", name])
            Path(name).replace(library)
        finally:
            Path(name).unlink(missing_ok=True)
    return library


def _compiler() -> list[str]:
    if named := shlex.split(os.environ.get("CC", "")):
        return named
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise FileNotFoundError("found none of cc, gcc, clang")


def _run(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise OSError(f"{shlex.join(argv[:1])} failed: {lines[0]}")
    return done.stdout
