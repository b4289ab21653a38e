"""DeepSpeed's own configuration for one of ours (``docs/guide/training.md``). Torch-free."""

from __future__ import annotations

from typing import Any

from trainer.deepspeed.rules import zero_stage
from trainer.plan.config import TrainConfig
from trainer.plan.formats import Format
from trainer.plan.placement import Placement
from trainer.plan.states import BUCKET_ELEMENTS


def deepspeed_config(config: TrainConfig, placement: Placement) -> dict[str, Any]:
    """Configuration for ``deepspeed.initialize``, of one that ``deepspeed.rules`` accepts."""
    stage, optimizer = zero_stage(placement), config.optimizer
    adamw = {
        "torch_adam": True,
        "fused": True,
        "lr": optimizer.lr,
        "betas": [optimizer.beta1, optimizer.beta2],
        "eps": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
    }
    values: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": config.mbs,
        "gradient_accumulation_steps": config.gas,
        "steps_per_print": config.steps + 1,
        # Infinite: it then counts the norm, which it does not without clipping.
        "gradient_clipping": config.optimizer.grad_clip or float("inf"),
        "optimizer": {"type": "AdamW", "params": adamw},
        "zero_optimization": _zero(config, placement, stage),
        "communication_data_type": config.reduce_precision,
        "bf16": {"enabled": config.precision == "bf16", "check_grad_overflow": False},
        "fp16": {
            "enabled": config.precision == "fp16",
            "initial_scale_power": 16,
            "loss_scale_window": 2000,
            "hysteresis": 1,
        },
    }
    # Its 16-bit ZeRO-0 cannot, and its fp16 pipeline would not sum a tied embedding's gradients.
    if stage != 0 and not (config.pp > 1 and config.precision == "fp16"):
        values["data_types"] = {"grad_accum_dtype": "fp32"}
    return values


def _zero(config: TrainConfig, placement: Placement, stage: int | None) -> dict[str, Any]:
    model, secondary = config.model, placement.secondary
    layer = 12 * model.hidden_size**2  # elements of a layer, about
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": config.pp == 1,
        # It sets buffers of this size aside; its default is 2 GB and more.
        "reduce_bucket_size": min(BUCKET_ELEMENTS, model.num_parameters),
        "allgather_bucket_size": min(BUCKET_ELEMENTS, model.num_parameters),
    }
    if stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": layer,
            # By default no layer of a model below 10^9 parameters is ever freed.
            "stage3_max_reuse_distance": layer,
            "stage3_param_persistence_threshold": 10 * model.hidden_size,
            "zero_hpz_partition_size": secondary.degree if secondary else 1,
            "zero_quantized_weights": placement.gather_format == Format.INT8,
            "zero_quantized_gradients": placement.reduce_format == Format.INT4,
        }
    return zero
