"""The words of out of memory: which text each reader takes for it, in linear time."""

from __future__ import annotations

import re
import time

import pytest

from foundation import out_of_memory as words

ERRORS = words.any_of(
    words.DEVICE_OOM, words.DEVICE_OOM_IN_ERRORS, words.HOST_OOM
)  # as the trainer asks its exceptions
LOGS = words.any_of(
    words.DEVICE_OOM, words.DEVICE_OOM_IN_LOGS, words.HOST_OOM, words.HOST_OOM_IN_LOGS
)  # as a verdict searches logs


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory",
        "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
        "rocblas_status_memory_error",
        "NCCL WARN Cuda failure 2 'out of memory'",
        "DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.",
        "unable to mmap 4096 bytes from file </torch_1_2>: Cannot allocate memory (12)",
    ],
)
def test_unmistakable_words_count_in_exceptions_and_in_logs(text: str) -> None:
    assert ERRORS.search(text) and LOGS.search(text)


@pytest.mark.parametrize(
    "line",
    [
        "CUDA out of memory, going on with micro-batches of 4",
        "W0000 failed to allocate 30.00GiB from device: CUDA_ERROR_OUT_OF_MEMORY, trying 27.00GiB",
        "NCCL WARN Failed to CUDA host alloc 1024 bytes",
        "HSA_STATUS_ERROR_OUT_OF_RESOURCES: no more signals in memory",
        "handled MemoryError in the data loader",
        "memory: 71.2 GiB of 80 GiB",
    ],
)
def test_a_log_of_a_program_that_goes_on_does_not_say_out_of_memory(line: str) -> None:
    assert not LOGS.search(line)


@pytest.mark.parametrize(
    "beginning",
    [
        "Triton Error [CUDA]: ",
        "unable to mmap 1 bytes ",
        "HSA_STATUS_ERROR_OUT_OF_RESOURCES ",
        "CUDA error ",
    ],
)
@pytest.mark.parametrize("pattern", [ERRORS, LOGS], ids=["errors", "logs"])
def test_words_are_sought_in_linear_time(pattern: re.Pattern[str], beginning: str) -> None:
    def cpu_s(length: int) -> float:
        text = beginning * (length // len(beginning))
        begin = time.thread_time()
        assert not pattern.search(text)
        return time.thread_time() - begin

    for _ in range(10):
        small_s, large_s = cpu_s(1 << 14), cpu_s(1 << 16)
        if large_s < max(0.01, 9 * small_s):
            return
    pytest.fail(f"{small_s} s, and {large_s} s for four times as much")
