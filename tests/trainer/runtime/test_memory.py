"""A memory limit on a CPU, the peak that is measured, and what counts as running out of memory."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import textwrap

import pytest
import torch

from trainer.runtime.memory import in_words, out_of_memory

MIB = 1 << 20


def in_a_process(script: str) -> dict[str, object]:
    """What a fresh process prints as JSON on its last line; limits are for a process's life."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_the_limit_stops_torch_where_it_says_and_can_be_lifted() -> None:
    answer = in_a_process("""
        import json, torch
        from trainer.runtime import memory
        MIB = 1 << 20
        memory.limit_memory(96 * MIB, torch.device("cpu"))
        held = [torch.ones(8 * MIB, dtype=torch.uint8) for _ in range(11)]
        try:
            torch.ones(9 * MIB, dtype=torch.uint8)
            verdict = None
        except RuntimeError as error:
            verdict = type(memory.out_of_memory(error)).__name__
        memory.lift_limit()
        held.append(torch.ones(200 * MIB, dtype=torch.uint8))
        print(json.dumps({"held": len(held), "verdict": verdict}))
    """)
    assert answer == {"held": 12, "verdict": "RuntimeError"}


def test_the_peak_is_what_was_touched_at_once_since_start_up() -> None:
    answer = in_a_process("""
        import json, torch
        from trainer.runtime import memory
        MIB = 1 << 20
        before = torch.ones(256 * MIB, dtype=torch.uint8)
        del before
        memory.limit_memory(None, torch.device("cpu"))
        first = memory.peak_memory_bytes()
        for _ in range(3):
            a = torch.ones(64 * MIB, dtype=torch.uint8)
            b = torch.ones(32 * MIB, dtype=torch.uint8)
            del a, b
        print(json.dumps({"first": first, "peak": memory.peak_memory_bytes()}))
    """)
    assert 0 <= answer["first"] < 4 * MIB
    assert answer["peak"] == pytest.approx(96 * MIB, abs=2 * MIB)


def test_with_a_limit_freed_tensors_count_no_longer_whatever_lies_between_them() -> None:
    answer = in_a_process("""
        import json, torch
        from trainer.runtime import memory
        memory.spare_memory(limited=True)
        memory.limit_memory(None, torch.device("cpu"))

        def private_bytes():
            with open("/proc/self/status") as status:
                (line,) = (line for line in status if line.startswith("VmData:"))
            return int(line.split()[1]) * 1024

        before = private_bytes()
        kept = []
        for _ in range(128):
            passing = torch.ones(512 << 10, dtype=torch.uint8)
            kept.append((passing, torch.ones(64)))
        kept = [small for _, small in kept]
        print(json.dumps({"held": private_bytes() - before}))
    """)
    assert answer["held"] < 8 << 20  # of the 64 MiB that were freed


def test_thread_stacks_hardly_count() -> None:
    answer = in_a_process("""
        import json, threading, torch
        from trainer.runtime import memory
        memory.spare_memory(limited=True)
        memory.limit_memory(64 << 20, torch.device("cpu"))
        done = threading.Event()
        threads = [threading.Thread(target=done.wait) for _ in range(24)]
        for thread in threads:
            thread.start()
        done.set()
        print(json.dumps({"started": len(threads)}))
    """)
    assert answer == {"started": 24}  # with 8 MiB each, the eighth would fail


def test_a_thread_that_finds_no_room_has_run_out_of_memory() -> None:
    answer = in_a_process("""
        import json, threading, torch
        from trainer.runtime import memory
        memory.spare_memory(limited=True)
        memory.limit_memory(1, torch.device("cpu"))
        try:
            threading.Thread(target=print).start()
            verdict = None
        except RuntimeError as error:
            memory.lift_limit()
            verdict = str(memory.out_of_memory(error))
        print(json.dumps({"verdict": verdict}))
    """)
    assert answer == {"verdict": "can't start new thread"}


OUT_OF_MEMORY = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has ..."),
    torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    *map(
        RuntimeError,
        (
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 4096 bytes. Error code 12 (Cannot allocate memory)",
            "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
            "HIP error: out of memory",
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "HIP error: hipErrorOutOfMemory",
            "NCCL error in: ProcessGroupNCCL.cpp:1, unhandled cuda error, NCCL version 2.27.3\n"
            "Last error:\nFailed to CUDA calloc async 608 bytes",
            "NCCL error: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
            "Last error:\nHIP failure 'out of memory'",
            "std::bad_alloc",
            "CUDA driver error: out of memory",
            "Triton Error [CUDA]: out of memory",
            "Triton Error [HIP]:  Code: 2, Messsage: out of memory",
            "NCCL error: unhandled cuda error\nLast error:\n"
            "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : "
            "CUDA error 2 'out of memory'",
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasLtCreate(&handle)`",
            "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
            "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
            "MIOPEN_STATUS_ALLOC_FAILED",
            "HSA exception: HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate",
        ),
    ),
]
AMBIGUOUS = [
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "CUDA error: HIPBLAS_STATUS_NOT_INITIALIZED when calling `hipblasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
    "HSA_STATUS_ERROR_OUT_OF_RESOURCES",
    "NCCL error: Failed to bind NVLink SHARP (NVLS) Multicast memory",
]
NOT_OUT_OF_MEMORY = [
    ValueError("DefaultCPUAllocator: can't allocate memory"),  # not what an allocator raises
    RuntimeError("Error: something failed"),
    RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    RuntimeError("Resource temporarily unavailable"),  # no limit is set here
    OSError(errno.ENOSPC, "No space left on device"),
    KeyError("memory"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=str)
def test_the_words_of_every_allocator_are_known(error: Exception) -> None:
    assert out_of_memory(error) is error


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_words_with_more_than_one_cause_count_where_the_device_is_full(text: str) -> None:
    error = RuntimeError(text)
    assert out_of_memory(error, free_bytes=100 * MIB) is error
    assert out_of_memory(error, free_bytes=20 << 30) is None
    assert out_of_memory(error) is None


@pytest.mark.parametrize("error", NOT_OUT_OF_MEMORY, ids=str)
def test_other_errors_are_not_taken_for_it(error: Exception) -> None:
    assert out_of_memory(error) is None


def test_the_cause_is_found_below_the_error_that_wraps_it() -> None:
    root = MemoryError("deep")
    middle = RuntimeError("[Stage 1] failed to run forward")
    middle.__cause__ = root
    outer = RuntimeError("schedule failed")
    outer.__context__ = middle
    assert out_of_memory(outer) is root


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__context__, second.__context__ = second, first
    assert out_of_memory(first) is None


def test_what_ran_out_is_told_with_the_memory_that_a_limit_is_on() -> None:
    figures = {"allocated": 3 << 20, "reserved": 5 << 20, "used": 9 << 20}
    device = {"type": "cuda", "memory_bytes": 16 << 20}
    assert in_words(figures, 6 << 20, device) == (
        "reserved by torch's allocator: peak 5.0 MiB, limit 6.0 MiB; held by tensors: peak "
        "3.0 MiB; used on the device now, by whomever: 9.0 MiB of 16.0 MiB"
    )
    assert ", limit" not in in_words(figures, None, device)
    on_cpu = in_words(figures, 6 << 20, {"type": "cpu", "memory_bytes": 1 << 30})
    assert on_cpu == "private memory since start-up: peak 9.0 MiB, limit 6.0 MiB"
