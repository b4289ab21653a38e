"""Importing DeepSpeed: late, since it takes seconds and may not be installed, and quietly."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from types import ModuleType

import torch.distributed as dist

from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError
from trainer.runtime.device import Device


def load_deepspeed(config: TrainConfig, device: Device) -> ModuleType:
    """Import DeepSpeed for a device and let it take over the default process group; again does
    nothing.

    Call it before memory is counted and limited, as it is part of start-up.

    Raises:
        ConfigError: if it is not installed.
    """
    os.environ["DS_ACCELERATOR"] = device.type
    if device.type == "cpu":
        ranks = dist.get_world_size()
        topology = config.topology(ranks, local_world_size())
        os.environ["LOCAL_SIZE"] = str(topology.ranks_per_node)  # its devices of a node
    else:
        # It numbers devices by local rank, also where the launcher shows each rank only one.
        os.environ["LOCAL_RANK"] = str(device.torch.index)
    with contextlib.redirect_stdout(sys.stderr):  # its banners, and its log's that begins here
        try:
            deepspeed = importlib.import_module("deepspeed")
        except ModuleNotFoundError as error:
            if error.name != "deepspeed":
                raise
            raise ConfigError(
                "engine deepspeed: DeepSpeed is not installed; pip install 'meshtune[deepspeed]'"
            ) from error
        # Its optimizers would import torch's compiler later.
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
        # Shared memory serves its inference only, and would be compiled here and now.
        backend = importlib.import_module("deepspeed.comm.torch")
        backend.build_shm_op = lambda: None  # type: ignore[attr-defined]
        deepspeed.init_distributed(dist_backend=device.backend, dist_init_required=False)
    # Names that torch 2.13 replaced; it says so on every rank.
    warnings.filterwarnings("ignore", r".*_tensor` is deprecated", FutureWarning, "torch")
    return deepspeed


def local_world_size() -> int | None:
    value = os.environ.get("LOCAL_WORLD_SIZE")
    return int(value) if value else None
