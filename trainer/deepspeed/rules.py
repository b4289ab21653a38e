"""Limits of DeepSpeed 0.19.8, each with its reason and a remedy. Torch-free.

DeepSpeed refuses some of it and silently runs the rest as something else; a second opinion must
answer the same question. Single fields declare what it refuses (``trainer.plan.fields``); here are
the conditions that read several.
"""

from __future__ import annotations

from typing import Literal

from trainer.plan.config import TrainConfig
from trainer.plan.placement import Placement
from trainer.plan.rules.declared import refused, refused_settings
from trainer.plan.rules.requirement import Requirement, refusal
from trainer.plan.states import ZERO_STAGES

DeviceType = Literal["cpu", "cuda"]

ANY_DEVICE = (
    *refused("deepspeed"),
    # ZeRO's stages split each state over all replicas or over none.
    Requirement(
        "deepspeed_experts",
        "num_experts == 0",
        "num_experts {num_experts}: it has no experts here; set engine: meshtune",
    ),
    Requirement(
        "deepspeed_degrees",
        "(weight_shard == 1 or weight_shard == dp)"
        " and (gradient_shard == 1 or gradient_shard == dp)"
        " and (optimizer_shard == 1 or optimizer_shard == dp)",
        "weight_shard {weight_shard}, gradient_shard {gradient_shard}, optimizer_shard "
        "{optimizer_shard}: it splits each over all {dp} replicas or not at all (MiCS left it in "
        "0.19.7); give zero_stage, or placement: hpz",
    ),
    Requirement(
        "deepspeed_pipeline",
        "pp == 1 or gradient_shard == 1",
        "pp {pp} with gradient_shard {gradient_shard}: its pipeline needs whole gradients; "
        "set zero_stage: 1, or pp: 1",
    ),
    # runtime/engine.py, BF16_Optimizer; runtime/utils.py, clip_grad_norm_.
    Requirement(
        "deepspeed_pipeline",
        "pp == 1 or optimizer_shard == dp",
        "pp {pp} with ZeRO-0: it would split the optimizer states all the same in bf16, and clip "
        "by the first stage's norm alone in fp32; set zero_stage: 1",
    ),
    Requirement(
        "deepspeed_secondary",
        "secondary_shard != 1",
        "secondary_shard 1: it takes a copy split over one rank for none; set secondary_shard to 2 "
        "or more, or zero_stage: 2",
    ),
    Requirement(
        "deepspeed_secondary",
        "not quantize_secondary",
        "quantize_secondary: it keeps the secondary copy of trained weights in their own format; "
        "set quantize_secondary: false",
    ),
)
CPU = (
    *(
        Requirement(
            "deepspeed_quantize",
            f"dp == 1 or not {name}",
            f"{name} on CPU: its kernels are CUDA's; set {name}: false",
        )
        for name in ("quantize_weights", "quantize_gradients")
    ),
    Requirement(
        "deepspeed_precision",
        "precision != 'fp16'",
        "fp16 on CPU: it has no such kernels; set precision: bf16",
    ),
)
CUDA = (
    *(
        Requirement(
            "deepspeed_quantize",
            f"dp == 1 or not {name} or weight_shard == dp",
            f"{name}: only its ZeRO-3 quantizes; set zero_stage: 3, or {name}: false",
        )
        for name in ("quantize_weights", "quantize_gradients")
    ),
    Requirement(
        "deepspeed_quantize",
        "dp == 1 or not quantize_gradients or num_nodes > 1",
        "quantize_gradients on one node: it quantizes between nodes only; "
        "set quantize_gradients: false",
    ),
    # DeepSpeedEngine.backward scales the loss for ZeRO's optimizers only.
    Requirement(
        "deepspeed_precision",
        "dp == 1 or precision != 'fp16' or optimizer_shard == dp",
        "fp16 with ZeRO-0: it divides gradients by a loss scale that it does not multiply with; "
        "set zero_stage: 1, or precision: bf16",
    ),
)


def deepspeed_requirements(device_type: DeviceType) -> tuple[Requirement, ...]:
    """Conditions that DeepSpeed adds; conditions of the same name are one rule of a space."""
    return (*ANY_DEVICE, *(CPU if device_type == "cpu" else CUDA))


def unsupported(
    config: TrainConfig,
    world_size: int,
    device_type: DeviceType,
    local_world_size: int | None = None,
) -> str | None:
    """Why DeepSpeed cannot train a valid configuration, with a remedy; None if it can.

    Whatever its ``engine``. ``local_world_size``: ranks per node, unless it says.

    Raises:
        ConfigError: if the degrees do not fit the ranks, whatever the engine.
    """
    facts = config.facts(world_size, local_world_size)
    settings = [*refused_settings(config, "deepspeed").values()]
    reason = settings[0] if settings else refusal(deepspeed_requirements(device_type), facts)
    return reason and f"engine deepspeed: {reason}"


def zero_stage(placement: Placement) -> int | None:
    """DeepSpeed's name for a placement; None if it has none.

    Without replicas stage 1, which also runs in a pipeline and sums gradients in float32.
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
