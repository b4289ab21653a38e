"""Patterns of out-of-memory messages, with the programs that print them.

The trainer (``trainer.runtime.memory``) searches its own exceptions, each about one failure. A
launcher (``slurm.outcome.kinds``) searches whole logs, where a line may also be a warning that the
program survived. Patterns that are unmistakable anywhere serve both, the others only one of them.

All are regular expressions for ``search``, linear in the length of a text: no repetition without a
bound, unless it is an atomic group from the start of a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

DEVICE_OOM = (
    # torch; "driver": expandable segments; "Error": Transformer Engine
    r"(?:CUDA|HIP) (?:driver |runtime )?[Ee]rror(?: \(\S{1,200}\)| in \w{1,40})?: out of memory",
    r"hipErrorOutOfMemory|cudaErrorMemoryAllocation",  # the runtimes' names
    r"Triton Error \[(?:CUDA|HIP)\]: [^\n]{0,60}out of memory",
    r"(?:(?:CU|HIP)(?:BLAS|SPARSE)|CUSOLVER|CUDNN|MIOPEN)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED",
    r"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED|CURAND_STATUS_ALLOCATION_FAILED",
    r"rocblas_status_memory_error|miopenStatusAllocFailed|cuBLAS Error: the resource allocation",
    r"(?:Cuda|CUDA|HIP|hip) (?:failure|error)(?: \d+)?:? 'out of memory'",  # NCCL, RCCL
)
"""Memory of the accelerator, in exceptions and in logs."""

DEVICE_OOM_IN_LOGS = (
    # An exception has a type; a trainer may log the bare words and go on with smaller batches.
    r"torch(?:\.\w{2,4})?\.OutOfMemoryError|(?:CUDA|HIP|XPU|NPU) out of memory\. Tried to allocate",
    r"(?m:^Error out of memory at line \d{1,6} in file )",  # bitsandbytes, which then exits
    r"Last error:\s{1,4}Failed to (?:CUDA|HIP|Cuda|hip) (?:host )?[mc]?alloc",  # else a warning
    r"Error: No available memory for the cache blocks",  # vLLM
    r"RESOURCE_EXHAUSTED: [^\n]{0,200}Ran out of memory in memory space",  # XLA's compiler
    r"(?:UR|ZE)_RESULT_ERROR_OUT_OF_DEVICE_MEMORY|MODULE:PT_DEVMEM Allocation failed",  # XPU, HPU
    # XLA and TensorFlow warn with the same words; an exception begins its line.
    r"(?m:^(?:\[rank\d+\]: *)?(?:[\w.]{0,100}OutOfMemoryError: |[\w.]{1,100}Error: (?:(?>.{0,80}?"
    r"RESOURCE_EXHAUSTED: )(?:\w{3,4} )?|(?:CUDA|HIP|XPU|NPU|HPU|HBM|GPU) ))"
    r"(?:[Oo]ut of memory|OOM when allocating|Error allocating device buffer"
    r"|Failed to allocate request for|Attempting to (?:reserve|allocate) [\d.]{1,20}[KMGT]))",
)

DEVICE_OOM_IN_ERRORS = (
    r"(?:CUDA|HIP) out of memory",
    # XLA logs it while it tries again with a smaller pool.
    r"CUDA_ERROR_OUT_OF_MEMORY",
    r"Failed to (?:CUDA|HIP|Cuda|hip) (?:host )?[mc]?alloc",  # NCCL and RCCL
    # ROCm's runtime, which prints it about queues and signals, too.
    r"HSA_STATUS_ERROR_OUT_OF_RESOURCES[^\n]{0,200}(?:memory|allocat)",
)

HOST_OOM = (
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",  # torch
    r"std::bad_alloc",  # C++, so gloo
    r"unable to mmap \d+ bytes[^\n]{0,300}Cannot allocate memory",  # torch's shared memory
)
"""Memory of the host, used up or limited, in exceptions and in logs."""

HOST_OOM_IN_LOGS = (
    # Python, numpy, Arrow: an exception has a type or an errno, and words of any language.
    r"(?m:^(?:\[rank\d+\]: *)?(?:[\w.]+\.(?:_Array|Arrow))?MemoryError\b)|\[Errno 12\] ",
    r"\bmemory allocation of \d{1,20} bytes failed",  # Rust, so tokenizers
    r"cannot allocate memory for thread-local data|cannot map zero-fill pages",  # the loader
    r"OpenBLAS error: Memory allocation",
    r"insufficient shared memory \(shm\)|workers are out of shared memory",  # torch's loader
    r"was killed due to the node running low on memory",  # Ray, so verl and OpenRLHF
)

PERHAPS_DEVICE_OOM = (
    r"(?:CU|HIP)BLAS(?:LT)?_STATUS_NOT_INITIALIZED",
    r"(?:CUDNN|MIOPEN)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)",
    r"rocblas_status_internal_error|HSA_STATUS_ERROR_OUT_OF_RESOURCES|NVLS|[Mm]ulticast",
)
"""A library got no memory for its handle or buffers, or failed otherwise: count it only if the
device is full."""

PERHAPS_NO_THREAD_STACK = (r"can't start new thread", r"Resource temporarily unavailable")
"""A thread got no stack, or there are too many: count it only at a limit on memory."""


def any_of(*groups: Iterable[str]) -> re.Pattern[str]:
    """A regular expression that finds any of these patterns."""
    return re.compile("|".join(words for group in groups for words in group))
