"""Memory of this rank on a CPU: a limit, the peak, and recognition of out-of-memory errors.

A CPU rank shares the machine's memory. ``limit_memory`` gives it a limit of its own, as a GPU has:
the kernel refuses private memory (RLIMIT_DATA) beyond start-up's plus the limit, and torch's
allocator then raises as on a GPU. Interpreter, libraries and process group are not charged.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from foundation import out_of_memory as words

_THREAD_STACK_BYTES = 1 << 20
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # of <malloc.h>
_start_bytes = 0  # anonymous resident memory when start-up was over
_end_bytes: int | None = None  # private memory at which the limit is reached


def limit_memory(limit_bytes: int | None, device: torch.device) -> None:
    """Count and limit memory from here on, the process group included in start-up.

    The limit is on private memory that this process adds on a CPU, on what torch's allocator
    reserves of an accelerator; None: no limit.
    """
    if device.type == "cuda":
        if limit_bytes is not None:
            total_bytes = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total_bytes), device)
        return
    global _start_bytes, _end_bytes
    lift_limit()
    _warm_up()
    with contextlib.suppress(OSError):  # needs a kernel option; the peak then includes start-up's
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again (man 5 proc)
    status = _status()
    _start_bytes = status["RssAnon"]
    if limit_bytes is not None:
        _end_bytes = status["VmData"] + limit_bytes
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (_end_bytes, hard))


def lift_limit() -> None:
    """Lift the limit, so that a failure can be reported."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def peak_memory_bytes() -> int:
    """Peak private memory in bytes since ``limit_memory``.

    The kernel keeps the peak of all resident pages (VmHWM); pages of files are subtracted as they
    are now. Allocated but untouched memory is left out, so a limit may be hit slightly above it.
    """
    status = _status()
    return max(0, status["VmHWM"] - status["RssFile"] - status["RssShmem"] - _start_bytes)


def in_words(figures: Mapping[str, int], limit_bytes: int | None, device: Mapping[str, Any]) -> str:
    """One line about memory used (``Device.memory``) and the limit on it."""
    mib = {key: f"{figures[key] / 2**20:.1f} MiB" for key in ("allocated", "reserved", "used")}
    limit = f", limit {limit_bytes / 2**20:.1f} MiB" if limit_bytes is not None else ""
    if device["type"] == "cpu":
        return f"private memory since start-up: peak {mib['used']}{limit}"
    return (
        f"reserved by torch's allocator: peak {mib['reserved']}{limit}; held by tensors: peak "
        f"{mib['allocated']}; used on the device now, by whomever: {mib['used']} of "
        f"{device['memory_bytes'] / 2**20:.1f} MiB"
    )


def spare_memory(limited: bool) -> None:
    """Make glibc return freed memory, and reserve little in advance, since the limit counts both.

    By default it raises, over time, the size from which allocations have pages of their own to 32
    MiB (with ZeRO 1 that doubled the peak), and reserves 8 MiB of stack and a heap per thread, of
    which each gloo group starts three (mallopt(3), pthread_setattr_default_np(3)). With a limit
    even small tensors get pages of their own, at the cost of time: memory is then reproducible.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 1 << (16 if limited else 20))
    libc.mallopt(_M_ARENA_MAX, 1)
    attributes = ctypes.create_string_buffer(64)  # pthread_attr_t: 56 bytes on 64-bit Linux
    if libc.pthread_attr_init(attributes) == 0:
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_THREAD_STACK_BYTES))
        libc.pthread_setattr_default_np(attributes)


# On a CPU rank with a limit, the host's memory stands for a device's.
_SIGNS = words.any_of(words.DEVICE_OOM, words.DEVICE_OOM_IN_ERRORS, words.HOST_OOM)
_AMBIGUOUS = words.any_of(words.PERHAPS_DEVICE_OOM)
_NO_THREAD = words.any_of(words.PERHAPS_NO_THREAD_STACK)
_FULL_BYTES = 512 << 20
"""Free memory below which a device is full: handles and buffers of libraries take less."""


def out_of_memory(error: BaseException, free_bytes: int | None = None) -> BaseException | None:
    """The out-of-memory error in an error's chain of causes, if any.

    Recognized by exception types of Python and torch, and texts of the allocators of CPU, CUDA and
    HIP, their libraries, NCCL, RCCL and gloo. Ambiguous texts count only if the device is full;
    ``free_bytes``: its free memory, None if unknown.
    """
    full = free_bytes is not None and free_bytes < _FULL_BYTES
    for link in _chain(error):
        if isinstance(link, (MemoryError, torch.OutOfMemoryError)):
            return link
        if isinstance(link, OSError) and link.errno == errno.ENOMEM:
            return link
        said = str(link) if isinstance(link, RuntimeError) else ""
        if _SIGNS.search(said) or (full and _AMBIGUOUS.search(said)):
            return link
        if _NO_THREAD.search(said) and _at_limit():
            return link
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what caused it; pipeline stages wrap their errors."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        yield link
        seen.add(id(link))
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _at_limit() -> bool:
    """Whether the limit has no room for a thread's stack; the error itself does not say."""
    return _end_bytes is not None and _status()["VmData"] + _THREAD_STACK_BYTES > _end_bytes


def _warm_up() -> None:
    """Make torch start its threads, and MKL allocate its buffers, as part of start-up."""
    wide = torch.ones(256, 2048, requires_grad=True)
    torch.nn.functional.gelu(wide @ wide.T).sum().backward()


def _status() -> dict[str, int]:
    """The sizes in ``/proc/self/status``, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields}
