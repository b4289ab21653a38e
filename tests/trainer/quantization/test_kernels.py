"""The quantization kernels, the CPU's and the GPUs': their bytes are those of plain torch."""

from __future__ import annotations

import ast
import concurrent.futures
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from benchmarks.trainer import gpu_tables
from trainer.plan.formats import Format
from trainer.quantization import (
    blocks as quantization,
    cpu as quantization_cpu,
    reference as quantization_torch,
)
from trainer.quantization.blocks import DTYPES, dequantize, dequantize_sum, quantize

FORMATS = (Format.INT8, Format.INT4)
KINDS = ("normal", "scaled", "any bits")
SIZES = (1, 2, 3, 5, 127, 128, 129, 254, 255, 256, 257, 258, 385, 511, 513, 2048, 2049, 5000)
WORKER = Path(__file__).parents[2] / "support/triton_worker.py"
Cases = list[dict[str, Any]]

needs_compiler = pytest.mark.skipif(
    quantization.kernels_for("cpu") is not quantization_cpu, reason="no C compiler"
)


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Bit for bit, but for the bits of a NaN."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    if found.is_floating_point():
        assert torch.equal(found.signbit() & (found == 0), expected.signbit() & (expected == 0))


def new_cases(numbers, settings: list[tuple[int, int, Format, str]], device: str = "cpu") -> Cases:
    """Inputs of (rows, n, format, kind), and outputs yet to be written, of all dtypes in turn."""
    cases = []
    for index, (count, n, fmt, kind) in enumerate(settings):
        x = numbers(count, n, DTYPES[index % 3], kind, index).to(device)
        packed = torch.full((count, fmt.num_bytes(n)), 77, dtype=torch.uint8, device=device)
        wide = torch.full((count, n + 3), 5.0, dtype=DTYPES[index // 3 % 3], device=device)
        sums = torch.ones(2, n, device=device)
        # Rows of a wider tensor: what lies between them must stay as it is.
        cases.append({"x": x, "fmt": fmt, "packed": packed, "wide": wide, "sums": sums})
        cases[-1]["decoded"] = wide[:, 1:-2]
    return cases


def assert_equal_torch(run_case, cases: Cases, fresh: Cases) -> None:
    """Of cases that a kernel has filled, against fresh ones."""
    for case, expected in zip(cases, fresh, strict=True):
        run_case(quantization_torch, expected)
        for name in ("packed", "wide", "sums"):
            assert_same(case[name].cpu(), expected[name])


@pytest.fixture(scope="module")
def run_case():
    """Fills a case with a kernel, as the worker does."""
    spec = importlib.util.spec_from_file_location(WORKER.stem, WORKER)
    assert spec and spec.loader
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    return worker.run_case


# ---- the CPU's kernel ----


@needs_compiler
@settings(max_examples=200)
@given(
    st.integers(1, 3), st.integers(1, 1100) | st.sampled_from(SIZES), st.sampled_from(DTYPES),
    st.sampled_from(FORMATS), st.sampled_from(KINDS), st.integers(0, 2**31),
    st.sampled_from(DTYPES), st.booleans(),
)  # fmt: skip
def test_the_compiled_kernel_equals_torch_bit_for_bit(
    numbers, count, n, dtype, fmt, kind, seed, decoded_dtype, accumulate
) -> None:
    x = numbers(count, n, dtype, kind, seed)
    packed, expected = torch.full((2, count, fmt.num_bytes(n)), 77, dtype=torch.uint8)
    quantization_cpu.quantize(x, fmt, packed)
    quantization_torch.quantize(x, fmt, expected)
    assert_same(packed, expected)
    found, expected = torch.ones(2, count, n, dtype=decoded_dtype)
    quantization_cpu.dequantize(packed, fmt, found)
    quantization_torch.dequantize(packed, fmt, expected)
    assert_same(found, expected)
    found, expected = torch.ones(2, n)
    quantization_cpu.dequantize_sum(packed, fmt, found, accumulate)
    quantization_torch.dequantize_sum(packed, fmt, expected, accumulate)
    assert_same(found, expected)


@needs_compiler
def test_every_number_of_16_bits_is_read_as_torch_reads_it() -> None:
    # Of one each block, so that nothing is hidden by a larger neighbour.
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for dtype in DTYPES[1:]:
        x = bits.view(dtype)[:, None]
        assert torch.equal(quantize(x, Format.INT8), quantize(x.float(), Format.INT8))


@needs_compiler
@pytest.mark.parametrize("fmt", FORMATS)
def test_the_number_of_threads_changes_nothing(numbers, fmt: Format, monkeypatch) -> None:
    x = numbers(3, 20_001, torch.bfloat16, "any bits", 7)
    results = []
    monkeypatch.setattr(quantization_cpu, "NUMBERS_PER_THREAD", 1)
    for threads in (1, 2, 7, 1000):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        packed = quantize(x, fmt)
        total = dequantize_sum(packed, fmt, torch.zeros(20_001))
        results.append((packed, dequantize(packed, fmt, torch.empty(3, 20_001)), total))
    for result in results[1:]:
        for found, expected in zip(result, results[0], strict=True):
            assert_same(found, expected)


@pytest.fixture
def first_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """As in a process that has not quantized yet, for a user without a cache; gives its folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    caches = (quantization.kernels_for, quantization_cpu.load)
    for cache in caches:
        cache.cache_clear()
    yield tmp_path / "meshtune"
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize(
    ("compiler", "reason"), [("/nowhere/cc", "/nowhere/cc"), ("false", "false failed")]
)
def test_without_a_compiler_torch_does_the_same_and_one_warning_says_so(
    numbers, first_use: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, reason: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    x = numbers(2, 1000, torch.bfloat16, "any bits", 8)
    with pytest.warns(RuntimeWarning, match=rf"slower: .*{reason}.*name one in CC") as caught:
        packed = quantize(x, Format.INT4)
        found = dequantize(packed, Format.INT4, torch.empty(2, 1000))
    assert len(caught) == 1
    expected = torch.full_like(packed, 77)
    quantization_torch.quantize(x, Format.INT4, expected)
    assert_same(packed, expected)
    expected = torch.empty(2, 1000)
    quantization_torch.dequantize(packed, Format.INT4, expected)
    assert_same(found, expected)


@needs_compiler
def test_ranks_that_start_together_leave_one_whole_library(first_use: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        built = set(pool.map(lambda _: quantization_cpu.build(), range(4)))
    assert [*first_use.iterdir()] == [*built]
    (library,) = built
    modified = library.stat().st_mtime_ns
    assert quantize(torch.ones(1, 4), Format.INT8).shape == (1, 8)
    assert library.stat().st_mtime_ns == modified  # it was not compiled again


@needs_compiler
def test_a_cache_that_cannot_be_written_is_done_without(
    first_use: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert quantize(torch.ones(1, 4), Format.INT8).shape == (1, 8)
    assert quantization.kernels_for("cpu") is quantization_cpu


# ---- the GPUs' kernels ----


def test_the_gpu_kernels_equal_torch_bit_for_bit_in_tritons_interpreter(
    numbers, run_case, tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    settings = [
        (1 + index % 3, n, fmt, KINDS[(index + index // len(KINDS)) % len(KINDS)])
        for index, (n, fmt) in enumerate(product(SIZES, FORMATS))
    ]
    file = tmp_path / "cases.pt"
    torch.save(new_cases(numbers, settings), file)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(WORKER), str(file)],
        capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    cases = torch.load(file, weights_only=False)
    assert_equal_torch(run_case, cases, new_cases(numbers, settings))


def compiled(cache: Path, *argv: str) -> list[dict[str, Any]]:
    """What ``benchmarks.trainer.triton_kernels`` prints."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.trainer.triton_kernels", *argv],
        env=os.environ | {"TRITON_CACHE_DIR": str(cache)},
        capture_output=True, text=True, timeout=1_000,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_good(found: list[dict[str, Any]]) -> None:
    for one in found:
        architecture, kernel, *_, aligned = one["variant"]
        assert one["spills"] == 0, one
        if architecture.startswith("sm"):
            assert one["fused"] == 0, f"{kernel} fuses a product with a sum"
            assert one["wide"] > 0 or not aligned, f"{kernel} reads and writes no 16 bytes at once"


def test_the_gpu_kernels_compile_for_six_gpus_without_spills_and_round_every_product(
    tmp_path: Path,
) -> None:
    found = compiled(tmp_path, "--quick")
    assert {one["variant"][0] for one in found} == {row[0] for row in gpu_tables.rows("triton")}
    assert_good(found)


@pytest.mark.heavy
def test_every_variant_of_the_gpu_kernels_takes_what_the_table_says(tmp_path: Path) -> None:
    found = compiled(tmp_path)
    assert_good(found)
    assert [[*map(str, row)] for row in gpu_tables.grouped(found)] == gpu_tables.rows("triton")


WITHOUT_A_COMPILER = """
import os, warnings
from benchmarks.pretended_gpu import steps
from trainer.quantization import blocks
own = blocks.kernels_for
steps.prepare()
blocks.kernels_for = own
os.environ["PATH"] = ""
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    found = steps.run("zero++")
print(found.get("error"), own("cuda").__name__)
print([str(one.message) for one in caught if "quantization" in str(one.message)])
"""


def test_without_a_compiler_on_a_gpu_node_a_step_runs_in_plain_torch_and_one_warning_says_so(
    tmp_path: Path,
) -> None:
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
    # As on a node with a driver: the launcher is what has to be compiled there.
    (tmp_path / "libcuda.so.1").touch()
    environment |= {"TRITON_LIBCUDA_PATH": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_COMPILER],
        env=environment, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    kernels, warned = done.stdout.splitlines()
    assert kernels == "None trainer.quantization.reference"
    (message,) = ast.literal_eval(warned)
    assert "several times slower: RuntimeError" in message and "C compiler" in message


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_the_bytes_are_those_of_the_cpu(numbers, run_case) -> None:
    settings = [(2, *rest) for rest in product(SIZES, FORMATS, KINDS)]
    kernels = quantization.kernels_for("cuda")
    assert kernels is not quantization_torch
    cases = new_cases(numbers, settings, "cuda")
    for case in cases:
        run_case(kernels, case)
    assert_equal_torch(run_case, cases, new_cases(numbers, settings))
