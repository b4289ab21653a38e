"""What DeepSpeed 0.19.8 cannot train, each with its reason and a remedy. Torch-free.

Some of it DeepSpeed refuses, some of it would run as something else without a word: a second
opinion must not be of another question.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from trainer.config import TrainConfig
from trainer.formats import Format
from trainer.placement import Placement

DeviceType = Literal["cpu", "cuda"]


def unsupported(
    config: TrainConfig,
    world_size: int,
    device_type: DeviceType,
    local_world_size: int | None = None,
) -> str | None:
    """Why DeepSpeed cannot train a configuration, and what to set instead; None if it can.

    Args:
        config: valid by itself, see ``TrainConfig.check``; its ``engine`` is not looked at.
        world_size: ranks.
        device_type: of all ranks.
        local_world_size: ranks of a node where the configuration does not say.

    Raises:
        ConfigError: if the degrees do not fit the ranks, whatever the engine.
    """
    placement = config.place(world_size, local_world_size)
    nodes = world_size // config.topology(world_size, local_world_size).ranks_per_node
    reasons = (
        *_layout(config),
        *_placement(config, placement, world_size),
        *_quantization(placement, nodes, device_type),
        *_rest(config, placement, device_type),
    )
    return next((f"engine deepspeed: {reason}" for reason in reasons), None)


def zero_stage(placement: Placement) -> int | None:
    """DeepSpeed's name for a placement; None if it has none.

    With one replica nothing is split whatever the stage; stage 1 also runs in a pipeline, and
    sums gradients in float32.
    """
    dp = placement.dp
    degrees = (placement.weights.degree, placement.gradients.degree, placement.optimizer.degree)
    if dp == 1:
        return 1
    stages = {(1, 1, 1): 0, (1, 1, dp): 1, (1, dp, dp): 2, (dp, dp, dp): 3}
    return stages.get(degrees)


def _layout(config: TrainConfig) -> Iterator[str]:
    if config.tp > 1:
        yield f"tp {config.tp}: its AutoTP splits Hugging Face models only; set tp: 1"
    if config.sequence_parallel:
        yield "sequence_parallel: it has no tensor parallelism here; set sequence_parallel: false"
    if config.vpp > 1:
        yield f"vpp {config.vpp}: its pipeline does not interleave; set vpp: 1"


def _placement(config: TrainConfig, placement: Placement, world_size: int) -> Iterator[str]:
    stage = zero_stage(placement)
    if stage is None:
        yield (
            f"weight_shard {placement.weights.degree}, gradient_shard "
            f"{placement.gradients.degree}, optimizer_shard {placement.optimizer.degree}: it "
            f"splits each over all {placement.dp} replicas or not at all (MiCS left it in 0.19.7); "
            "give zero_stage, or placement: hpz"
        )
        return
    if config.pp > 1 and stage >= 2:
        yield (
            f"pp {config.pp} with ZeRO-{stage}: its pipeline needs whole gradients; "
            "set zero_stage: 1, or pp: 1"
        )
    if config.pp > 1 and stage == 0:
        # runtime/engine.py, BF16_Optimizer; runtime/utils.py, clip_grad_norm_.
        yield (
            f"pp {config.pp} with ZeRO-0: it would split the optimizer states all the same in "
            "bf16, and clip by the first stage's norm alone in fp32; set zero_stage: 1"
        )
    secondary = placement.secondary
    if secondary is not None:
        if secondary.degree == 1:
            yield (
                "secondary_shard 1: it takes a copy split over one rank for none; "
                f"set secondary_shard to 2 or more, or zero_stage: {min(stage, 2)}"
            )
        if secondary.format == Format.INT8:
            yield (
                "quantize_secondary: it keeps the secondary copy of trained weights in their own "
                "format; set quantize_secondary: false"
            )


def _quantization(placement: Placement, nodes: int, device_type: DeviceType) -> Iterator[str]:
    if placement.dp == 1:
        return
    wanted = {
        "quantize_weights": placement.gather_format == Format.INT8,
        "quantize_gradients": placement.reduce_format == Format.INT4,
    }
    for name in (name for name, is_wanted in wanted.items() if is_wanted):
        if device_type == "cpu":
            yield f"{name} on CPU: its kernels are CUDA's; set {name}: false"
        if zero_stage(placement) != 3:
            yield f"{name}: only its ZeRO-3 quantizes; set zero_stage: 3, or {name}: false"
        elif name == "quantize_gradients" and nodes < 2:
            yield (
                "quantize_gradients on one node: it quantizes between nodes only; "
                "set quantize_gradients: false"
            )


def _rest(config: TrainConfig, placement: Placement, device_type: DeviceType) -> Iterator[str]:
    if config.recompute == "selective":
        yield "recompute selective: it recomputes whole layers; set recompute: full, or none"
    if config.precision == "fp16" and device_type == "cpu":
        yield "fp16 on CPU: it has no such kernels; set precision: bf16"
    if config.precision == "fp16" and zero_stage(placement) == 0:
        # DeepSpeedEngine.backward scales the loss for ZeRO's optimizers only.
        yield (
            "fp16 with ZeRO-0: it divides gradients by a loss scale that it does not multiply "
            "with; set zero_stage: 1, or precision: bf16"
        )
    if config.time_communication:
        yield "time_communication: its collectives are its own; set time_communication: false"
