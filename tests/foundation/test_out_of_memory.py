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
    "text",
    [
        "RuntimeError: common/util/cuda_runtime.cpp:12 in function f: CUDA Error: out of memory",
        "RuntimeError: gemm.cu:321 in function f: cuBLAS Error: the resource allocation failed",
        "CUDA error (/src/flash_api.cpp:123): out of memory",
        "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "Error out of memory at line 380 in file /src/csrc/pythonInterface.c",
        "RuntimeError: XPU out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 32.00 GiB total",
        "RuntimeError: UR backend returns:39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        "ncclUnhandledCudaError: Call failed.\nLast error:\nFailed to CUDA calloc 6291456 bytes",
        "jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for "
        "2.99GiB (3206250496B) on device ordinal 0",
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 10.51G at the",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent. "
        "Ran out of memory in memory space hbm. Used 21.52G of 15.48G hbm.",
        "(EngineCore pid=7) ERROR core.py] ValueError: No available memory for the cache blocks."
        " Try increasing `gpu_memory_utilization` when initializing the engine.",
        "RuntimeError: DataLoader worker (pid 7579) is killed by signal: Bus error. It is possible "
        "that dataloader's workers are out of shared memory. Please try to raise your limit.",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes",
        "[rank3]: RuntimeError: CUDA out of memory.",
        "OSError: [Errno 12] Nicht genügend Hauptspeicher verfügbar",
        "memory allocation of 8589934592 bytes failed",
    ],
)
def test_a_log_that_ends_by_any_frameworks_words_says_out_of_memory(text: str) -> None:
    assert LOGS.search(text)


@pytest.mark.parametrize(
    "line",
    [
        "CUDA out of memory, going on with micro-batches of 4",
        "W0000 failed to allocate 30.00GiB from device: CUDA_ERROR_OUT_OF_MEMORY, trying 27.00GiB",
        "NCCL WARN Failed to CUDA host alloc 1024 bytes",
        "HSA_STATUS_ERROR_OUT_OF_RESOURCES: no more signals in memory",
        "handled MemoryError in the data loader",
        "W0000 bfc_allocator.cc:482: Allocator (GPU_0_bfc) ran out of memory; RESOURCE_EXHAUSTED",
        "grpc: RESOURCE_EXHAUSTED: Received message larger than max",
        "ValueError: the help says what to do when out of memory",
        "memory: 71.2 GiB of 80 GiB",
    ],
)
def test_a_log_of_a_program_that_goes_on_does_not_say_out_of_memory(line: str) -> None:
    assert not LOGS.search(line)


@pytest.mark.parametrize(
    "beginning",
    [
        "RESOURCE_EXHAUSTED: ",
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
