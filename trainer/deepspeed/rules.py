"""What DeepSpeed 0.19.8 cannot train, each with its reason and a remedy. Torch-free.

Some of it DeepSpeed refuses, some of it would run as something else without a word: a second
opinion must not be of another question.
"""

from __future__ import annotations

from typing import Literal

from trainer.plan.axes.mesh import GRID
from trainer.plan.config import TrainConfig
from trainer.plan.formats import Format
from trainer.plan.placement import Placement
from trainer.plan.rules.requirement import DEGREES, Requirement, refusal

DeviceType = Literal["cpu", "cuda"]

ANY_DEVICE = (
    Requirement(
        "deepspeed_tp",
        "tp == 1",
        "tp {tp}: its AutoTP splits Hugging Face models only; set tp: 1",
    ),
    Requirement(
        "deepspeed_tp",
        "gx * gy * gz == 1",
        "gx {gx}, gy {gy}, gz {gz}: the grid is meshtune's own; set all of them to 1",
    ),
    Requirement(
        "deepspeed_tp",
        "not sequence_parallel",
        "sequence_parallel: it has no tensor parallelism here; set sequence_parallel: false",
    ),
    Requirement(
        "deepspeed_cp",
        "cp == 1",
        "cp {cp}: it has no context parallelism here; set cp: 1",
        axes=("cp",),
    ),
    Requirement(
        "deepspeed_vpp",
        "vpp == 1",
        "vpp {vpp}: its pipeline does not interleave; set vpp: 1",
    ),
    Requirement(
        "deepspeed_stages",
        "pipeline_schedule == '1F1B'",
        "pipeline_schedule {pipeline_schedule}: its pipeline runs 1F1B; set pipeline_schedule: "
        "1F1B",
    ),
    Requirement(
        "deepspeed_stages",
        "first_stage_layers + last_stage_layers == 0",
        "first_stage_layers {first_stage_layers}, last_stage_layers {last_stage_layers}: its "
        "pipeline shares layers out equally here; set both to 0",
    ),
    Requirement(
        "deepspeed_stages",
        "rank_order == 'tp-cp-dp-pp'",
        "rank_order {rank_order}: its pipeline's stages stand outside its replicas; set "
        "rank_order: tp-cp-dp-pp",
    ),
    # All replicas or one, for each: ZeRO's stages.
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
    Requirement(
        "deepspeed_recompute",
        "recompute != 'selective'",
        "recompute selective: it recomputes whole layers; set recompute: full, or none",
    ),
    Requirement(
        "deepspeed_recompute_every",
        "recompute_every == 1",
        "recompute_every {recompute_every}: it recomputes every layer; set recompute_every: 1",
    ),
    Requirement(
        "deepspeed_reduce",
        "reduce_gradients == 'micro_batch'",
        "reduce_gradients step: it reduces split gradients behind each micro-batch; set "
        "reduce_gradients: micro_batch",
    ),
    Requirement(
        "deepspeed_compile",
        "not compile",
        "compile: its layers run as they are; set compile: false",
    ),
    Requirement(
        "deepspeed_tune",
        "not tune_kernels",
        "tune_kernels: its layers' products are torch's own; set tune_kernels: false",
    ),
    Requirement(
        "deepspeed_precision",
        "precision != 'fp8'",
        "precision fp8: its layers' products are torch's own; set precision: bf16",
    ),
    Requirement(
        "deepspeed_time_communication",
        "not time_communication",
        "time_communication: its collectives are its own; set time_communication: false",
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
    """Conditions that DeepSpeed adds; those of one name are one rule of a space."""
    return (*ANY_DEVICE, *(CPU if device_type == "cpu" else CUDA))


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
    copy = placement.secondary
    own = {"tp", *GRID, "cp", "pp", "vpp", "sequence_parallel", "recompute", "recompute_every"}
    own |= {"compile", "tune_kernels", "precision", "time_communication", "reduce_gradients"}
    own |= {"pipeline_schedule", "first_stage_layers", "last_stage_layers", "rank_order"}
    values = {
        **config.model_dump(include=own),
        **{name: getattr(placement, name) for name in ("dp", *DEGREES)},
        "quantize_weights": placement.gather_format == Format.INT8,
        "quantize_gradients": placement.reduce_format == Format.INT4,
        "quantize_secondary": copy is not None and copy.format == Format.INT8,
        "num_nodes": world_size // config.topology(world_size, local_world_size).ranks_per_node,
    }
    reason = refusal(deepspeed_requirements(device_type), values)
    return reason and f"engine deepspeed: {reason}"


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
