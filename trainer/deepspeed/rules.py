"""Limits of DeepSpeed 0.19.8, each with its reason and a remedy. Torch-free.

DeepSpeed refuses some configurations and silently runs others as something else; a second opinion
must train the same. Single fields declare what it refuses (``trainer.plan.fields``); conditions on
several fields are in ``rules.yaml``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from trainer.plan.config import TrainConfig
from trainer.plan.placement import Placement
from trainer.plan.rules.catalog import refused, refused_settings
from trainer.plan.rules.requirement import Requirement, read_requirements, refusal
from trainer.plan.states import ZERO_STAGES

DeviceType = Literal["cpu", "cuda"]

_STATED = read_requirements(Path(__file__).with_suffix(".yaml"))


def deepspeed_requirements(device_type: DeviceType) -> tuple[Requirement, ...]:
    """Conditions that DeepSpeed adds; conditions of the same name are one rule of a space."""
    return (*refused("deepspeed"), *_STATED["any_device"], *_STATED[device_type])


def unsupported(
    config: TrainConfig, world_size: int, device_type: DeviceType, local_world_size: int | None
) -> str | None:
    """Why DeepSpeed cannot train a valid configuration, whatever its ``engine``; None if it can.

    Raises ConfigError if the degrees do not fit the ranks.
    """
    facts = config.facts(world_size, local_world_size)
    settings = [*refused_settings(config, "deepspeed").values()]
    reason = settings[0] if settings else refusal(deepspeed_requirements(device_type), facts)
    return reason and f"engine deepspeed: {reason}"


def zero_stage(placement: Placement) -> int | None:
    """DeepSpeed's ZeRO stage for a placement; None if no stage is the same.

    Without replicas it is 1, which also runs in a pipeline and sums gradients in float32.
    """
    dp = placement.dp
    if dp == 1:
        return 1
    for stage in range(4):
        if all(
            getattr(placement, name) == (dp if stage >= first else 1)
            for name, first in ZERO_STAGES.items()
        ):
            return stage
    return None
