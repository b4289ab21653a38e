"""The devices: the only module that knows CPU (gloo), NVIDIA (NCCL) and AMD (RCCL) apart.

torch built for AMD calls its devices ``cuda`` and RCCL ``nccl``; nothing else differs here.
"""

from __future__ import annotations

import os
import time

import torch

from trainer.config import ConfigError
from trainer.runtime import memory


class Device:
    """This rank's device.

    Args:
        name: ``auto`` takes an accelerator if there is one.
        local_rank: of this process on its node.
        local_world_size: ranks on this node.

    Raises:
        ConfigError: if ``cuda`` is asked for and there is none for this rank.
    """

    def __init__(self, name: str, local_rank: int = 0, local_world_size: int = 1) -> None:
        self.local_world_size = local_world_size
        found = torch.cuda.device_count()
        self.type = ("cuda" if found else "cpu") if name == "auto" else name
        if self.type == "cuda":
            # One visible device per rank is how Slurm binds them with --gpus-per-task.
            index = 0 if found == 1 else local_rank
            if index >= found or (found == 1 and local_world_size > 1 and not _bound()):
                raise ConfigError(
                    f"device: {local_world_size} ranks on a node that shows {found} accelerators; "
                    "start one rank per accelerator, or set device: cpu"
                )
            self.torch = torch.device("cuda", index)
            torch.cuda.set_device(self.torch)
        else:
            self.torch = torch.device("cpu")
            if "OMP_NUM_THREADS" not in os.environ:  # else torch has done as it says
                torch.set_num_threads(_fair_threads(local_world_size))

    @classmethod
    def of_this_rank(cls, name: str) -> Device:
        """The device as the launcher's LOCAL_RANK and LOCAL_WORLD_SIZE tell."""
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        return cls(name, local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))

    @property
    def backend(self) -> str:
        """Of ``torch.distributed``; on AMD ``nccl`` is RCCL."""
        return "nccl" if self.type == "cuda" else "gloo"

    @property
    def half(self) -> torch.dtype:
        """The 16-bit format to train in: bf16, or fp16 on GPUs of before 2020."""
        if self.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.float16
        return torch.bfloat16

    def facts(self) -> dict[str, str | int | None]:
        """What torch says of the device: ``type``, ``name``, ``memory_bytes``, ``compute_units``
        (None on a CPU), and ``library``, the collectives' with its version.

        A CPU rank has an equal share of its node's memory.
        """
        if self.type == "cuda":
            seen = torch.cuda.get_device_properties(self.torch)
            library = "RCCL" if torch.version.hip else "NCCL"
            return {
                "type": self.type,
                "name": seen.name,
                "memory_bytes": seen.total_memory,
                "compute_units": seen.multi_processor_count,
                "library": f"{library} {'.'.join(map(str, torch.cuda.nccl.version()))}",
            }
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return {
            "type": self.type,
            "name": "a process on a CPU",
            "memory_bytes": whole // self.local_world_size,
            "compute_units": None,
            "library": "gloo",
        }

    def host_buffer(self, num_bytes: int) -> torch.Tensor:
        """Memory of the host that the device can copy from at full speed."""
        return torch.ones(num_bytes // 4, pin_memory=self.type == "cuda")

    def synchronize(self) -> None:
        """Wait until all work given to the device is done."""
        if self.type == "cuda":
            torch.cuda.synchronize(self.torch)

    def clock(self) -> float:
        """Seconds, read when all work given to the device is done."""
        self.synchronize()
        return time.perf_counter()

    def peak_memory_bytes(self) -> int:
        """Most memory in use since start-up.

        On an accelerator what tensors held; on CPU the private memory of this process, counted
        from ``memory.limit_memory``.
        """
        if self.type == "cuda":
            peak: int = torch.cuda.max_memory_allocated(self.torch)
            return peak
        return memory.peak_memory_bytes()


def _bound() -> bool:
    """Whether the launcher gave this rank a device of its own."""
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    return any(os.environ.get(name) for name in names)


def _fair_threads(local_world_size: int) -> int:
    """Threads of a rank that shares its cores: more would wait for each other.

    Cores that the launcher bound to this rank, as srun does with ``-c``, are not shared.
    """
    cores = len(os.sched_getaffinity(0))
    shared_by = local_world_size if cores == os.cpu_count() else 1
    return max(1, cores // shared_by)
