"""The devices: the only module that knows CPU (gloo), NVIDIA (NCCL) and AMD (RCCL) apart.

torch built for AMD calls its devices ``cuda`` and RCCL ``nccl``; nothing else differs here.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from foundation.energy import Meter
from trainer.plan.limits import ConfigError
from trainer.runtime import memory


class Device:
    """This rank's device; ``auto`` prefers an accelerator.

    Raises ConfigError if ``cuda`` is asked for and missing, or ``auto`` finds accelerators on the
    node that torch cannot use.
    """

    def __init__(self, name: str, local_rank: int = 0, local_world_size: int = 1) -> None:
        self.local_world_size = local_world_size
        found = torch.cuda.device_count()
        self.type = ("cuda" if found else "cpu") if name == "auto" else name
        if not found and (self.type == "cuda" or (name == "auto" and granted(os.environ))):
            raise ConfigError(f"device: {name}: {_why_none()}; or set device: cpu")
        if self.type == "cuda":
            # One visible device per rank is how Slurm binds them with --gpus-per-task.
            index = 0 if found == 1 else local_rank
            if index >= found or (
                found == 1 and local_world_size > 1 and not any(map(os.environ.get, _VISIBLE))
            ):
                raise ConfigError(
                    f"device: {local_world_size} ranks on a node that shows {found} accelerators; "
                    "start one rank per accelerator, or set device: cpu"
                )
            self.torch = torch.device("cuda", index)
            torch.cuda.set_device(self.torch)
        else:
            self.torch = torch.device("cpu")
            if "OMP_NUM_THREADS" not in os.environ:  # torch reads that itself
                torch.set_num_threads(_fair_threads(local_world_size))

    @classmethod
    def of_this_rank(cls, name: str) -> Device:
        """The device by the launcher's LOCAL_RANK and LOCAL_WORLD_SIZE."""
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        return cls(name, local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))

    @property
    def backend(self) -> str:
        """Backend of ``torch.distributed``; on AMD ``nccl`` is RCCL."""
        return "nccl" if self.type == "cuda" else "gloo"

    @property
    def half(self) -> torch.dtype:
        """The 16-bit format to train in: bf16, or fp16 on GPUs of before 2020."""
        if self.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.float16
        return torch.bfloat16

    def has_grouped_attention(self, dtype: torch.dtype, head_dim: int, masked: bool) -> bool:
        """Whether a kernel of ``attention_backends`` takes fewer key heads than query heads.

        AMD's do not with a mask, nor in float32.
        """
        if self.type == "cpu":
            return True
        cuda, asked = torch.backends.cuda, self._attention(dtype, head_dim, masked)
        rules = cuda.can_use_cudnn_attention, cuda.can_use_flash_attention
        return any(can(asked) for can in (*rules, cuda.can_use_efficient_attention))

    def has_packed_attention(self, dtype: torch.dtype, head_dim: int, compiled: bool) -> bool:
        """Whether attention takes packed documents without a mask; on GPUs by flash attention's
        kernel for sequences of any lengths."""
        if self.type == "cpu":
            return not compiled
        flash = torch.backends.cuda.can_use_flash_attention
        return head_dim % 8 == 0 and flash(self._attention(dtype, head_dim, masked=False))

    def _attention(self, dtype: torch.dtype, head_dim: int, masked: bool) -> Any:
        """Arguments for torch's rules of kernels, with one key head for two query heads."""
        query = torch.empty(1, 2, 128, head_dim, dtype=dtype, device=self.torch)
        key = query[:, :1]
        mask = query.new_zeros(1, 1, 128, 128) if masked else None
        return torch.backends.cuda.SDPAParams(query, key, key, mask, 0.0, not masked, True)

    def group_options(self) -> dict[str, Any]:
        """Backend and device arguments of ``init_process_group``.

        A group that knows its device connects when it is made, not in its first collective, and its
        subgroups are split off it.
        """
        bound = {"device_id": self.torch} if self.type == "cuda" else {}
        return {"backend": self.backend, **bound}

    def facts(self) -> dict[str, str | int | None]:
        """Facts for a result; a CPU rank counts an equal share of its node's memory."""
        if self.type == "cuda":
            seen = torch.cuda.get_device_properties(self.torch)
            library = "RCCL" if torch.version.hip else "NCCL"
            return {
                "type": self.type,
                "name": seen.name,
                "memory_bytes": seen.total_memory,
                "compute_units": seen.multi_processor_count,
                "driver": _driver(),
                "runtime": _built_for(),
                "library": f"{library} {'.'.join(map(str, torch.cuda.nccl.version()))}",
            }
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return {
            "type": self.type,
            "name": "a process on a CPU",
            "memory_bytes": whole // self.local_world_size,
            "compute_units": None,
            "driver": None,
            "runtime": None,
            "library": "gloo",
        }

    def meter(self, rank: int) -> Meter:
        """The energy that this rank's device, or its node, uses."""
        gpu = self.type == "cuda"
        return Meter(str(torch.cuda.get_device_properties(self.torch).uuid) if gpu else "", rank)

    def clock(self) -> float:
        """Seconds, once the current stream's computation is done; communication beside it may go
        on."""
        if self.type == "cuda":
            torch.cuda.current_stream(self.torch).synchronize()
        return time.perf_counter()

    def memory(self) -> dict[str, int]:
        """Peak bytes since start-up: ``allocated`` by tensors, ``reserved`` by torch's allocator,
        ``used``.

        On an accelerator ``used`` is what all processes hold of it now; a limit is on ``reserved``.
        On a CPU all three are this process's private memory since ``memory.limit_memory``, and so
        is a limit.
        """
        if self.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.torch)
            return {
                "allocated": torch.cuda.max_memory_allocated(self.torch),
                "reserved": torch.cuda.max_memory_reserved(self.torch),
                "used": total - free,
            }
        peak = memory.peak_memory_bytes()
        return {"allocated": peak, "reserved": peak, "used": peak}

    def free_bytes(self) -> int | None:
        """Free memory of an accelerator; None on a CPU, or if the device no longer answers."""
        if self.type != "cuda":
            return None
        try:
            free: int = torch.cuda.mem_get_info(self.torch)[0]
        except RuntimeError:
            return None
        limit = torch.cuda.get_per_process_memory_fraction(self.torch)
        allowed = int(limit * torch.cuda.get_device_properties(self.torch).total_memory)
        left: int = allowed - torch.cuda.memory_reserved(self.torch)
        return min(free, max(0, left))


def attention_backends(device_type: str) -> contextlib.AbstractContextManager[None]:
    """Context in which attention runs by cuDNN, else flash, else memory-efficient kernels.

    On an accelerator it is an error if none of them can: torch's fallback stores scores that grow
    with the square of the sequence. A CPU has one kernel and its fallback.
    """
    if device_type == "cpu":
        return contextlib.nullcontext()
    order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    return sdpa_kernel(order, set_priority=True)


_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NOBODY = ("-1", "NoDevFiles")


def granted(environ: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Whether this rank was given accelerators, usable or not; ``environ`` may hide them."""
    visible = [environ[name] for name in _VISIBLE if name in environ]
    if visible:
        return any(value and value not in _NOBODY for value in visible)
    return any(devices.glob("nvidia[0-9]*")) or (devices / "kfd").exists()


def _why_none() -> str:
    """Why torch has no accelerator here, and the remedy."""
    built = _built_for()
    if built is None:
        return (
            f"torch {torch.__version__} is built for CPUs only; install the build for this "
            "cluster's GPUs (CUDA or ROCm)"
        )
    return (
        f"torch {torch.__version__}, built for {built}, finds no accelerator; ask for GPUs (site "
        "profile: gpus; srun: --gpus-per-task=1), or install the build for this cluster's"
    )


def _built_for() -> str | None:
    """Platform and version that torch was built for; None: CPUs only."""
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else None


def _driver() -> str | None:
    """Name and version of the kernel's driver, if known."""
    try:
        if torch.version.hip:
            return f"amdgpu {Path('/sys/module/amdgpu/version').read_text().strip()}"
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    version = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", text)
    return f"NVIDIA {version[0]}" if version else None


def _fair_threads(local_world_size: int) -> int:
    """Threads of a rank: its share of the node's cores, or all that the launcher bound to it."""
    cores = len(os.sched_getaffinity(0))
    shared_by = local_world_size if cores == os.cpu_count() else 1
    return max(1, cores // shared_by)
