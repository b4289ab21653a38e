"""Speed of quantizing and decoding numbers, against a plain copy of the same numbers.

    python -m benchmarks.trainer.quantization [--threads 1] [--repeats 20] [--device cpu]

GB/s are bytes of the numbers, not of their codes, by the time; a sum is of 8 rows, which together
have as many numbers. Copies and kernels take turns in one run, so that they meet the same machine;
``of copy`` is the median of the turns' ratios.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import torch

from trainer.plan.formats import Format
from trainer.quantization import blocks as quantization

MIB = 2**20
SIZES_MIB = {"cpu": (1, 64), "cuda": (64, 1024)}  # within the caches and far beyond them
SUMMED_ROWS = 8
Work = Callable[[], object]


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1, help="of torch, on CPU")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    print(machine(device), "\n")
    print("| MiB | numbers | format | what | GB/s: median (min..max) | copy GB/s | of copy |")
    print("|---|---|---|---|---|---|---|")
    for mib, dtype, fmt in product(
        SIZES_MIB[device.type], (torch.float32, torch.bfloat16), (Format.INT8, Format.INT4)
    ):
        # What is quick is repeated more often: it varies more.
        repeats = args.repeats * (10 if mib == min(SIZES_MIB[device.type]) else 1)
        times_s = measure(works(mib * MIB, dtype, fmt, device), repeats, device)
        name = str(dtype).removeprefix("torch.")
        for what in [*times_s][1:]:
            print(f"| {mib} | {name} | {fmt} | {what} | {row(times_s, what, mib * MIB)} |")


def works(num_bytes: int, dtype: torch.dtype, fmt: Format, device: torch.device) -> dict[str, Work]:
    """The operations to measure, on so many bytes of numbers."""
    n = num_bytes // dtype.itemsize
    x = torch.randn(1, n, device=device).to(dtype)
    y = torch.empty_like(x)
    packed = quantization.quantize(x, fmt)
    calls: dict[str, Work] = {
        "copy": lambda: y.copy_(x),
        "quantize": lambda: quantization.quantize(x, fmt, packed),
        "dequantize": lambda: quantization.dequantize(packed, fmt, y),
    }
    if dtype == torch.float32:
        rows = quantization.quantize(x.view(SUMMED_ROWS, -1), fmt)
        total = torch.empty(n // SUMMED_ROWS, device=device)
        calls["dequantize_sum"] = lambda: quantization.dequantize_sum(rows, fmt, total)
    return calls


def measure(calls: dict[str, Work], repeats: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds of each call, which take turns."""
    times_s: dict[str, list[float]] = {what: [] for what in calls}
    for turn in range(repeats + 1):
        for what, call in calls.items():
            elapsed_s = on_gpu_s(call) if device.type == "cuda" else on_cpu_s(call)
            if turn > 0:  # the first compiles kernels and touches memory
                times_s[what].append(elapsed_s)
    return times_s


def on_cpu_s(call: Work) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def on_gpu_s(call: Work) -> float:
    """On the device's own clock, without the time to launch."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(1_000_000)  # keeps the device busy until all is launched
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def row(times_s: dict[str, list[float]], what: str, num_bytes: int) -> str:
    """The last three columns of the table."""
    rates = [num_bytes / 1e9 / elapsed_s for elapsed_s in times_s[what]]
    copy = statistics.median(num_bytes / 1e9 / elapsed_s for elapsed_s in times_s["copy"])
    pairs = zip(times_s["copy"], times_s[what], strict=True)
    ratio = statistics.median(copy_s / elapsed_s for copy_s, elapsed_s in pairs)
    spread = f"{statistics.median(rates):.1f} ({min(rates):.1f}..{max(rates):.1f})"
    return f"{spread} | {copy:.1f} | {ratio:.2f}"


def machine(device: torch.device) -> str:
    """Machine and versions, one line."""
    kernels = quantization.kernels_for(device.type).__name__
    versions = f"Linux {platform.release()}, Python {platform.python_version()}"
    if device.type == "cuda":
        import triton

        name = torch.cuda.get_device_name(device)
        return (
            f"{name}; {versions}, torch {torch.__version__}, triton {triton.__version__}; {kernels}"
        )
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), platform.machine(),
    )  # fmt: skip
    return (
        f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start, "
        f"{torch.get_num_threads()} threads; {versions}, torch {torch.__version__}; {kernels}"
    )


if __name__ == "__main__":
    main()
