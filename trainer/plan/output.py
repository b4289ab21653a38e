"""What a run tells of itself while it trains. Torch-free."""

from __future__ import annotations

from pydantic import Field

from foundation.records import Record
from trainer.plan.limits import Steps


class Validation(Record):
    """The loss on held-out data, named as torchtitan's."""

    data: str = Field(min_length=1, description="prefix of an indexed token file, as data")
    freq: Steps = Field(default=10, description="steps between validations; also after the last")
    steps: Steps = Field(
        default=1, description="global batches that are read, the same ones each time"
    )


class Metrics(Record):
    """Figures of single steps, in ``metrics.jsonl`` beside the configuration, and elsewhere."""

    log_freq: Steps = Field(default=1, description="steps between lines")
    enable_tensorboard: bool = Field(
        default=False, description="also for TensorBoard, in the folder tb (needs tensorboard)"
    )
    enable_wandb: bool = Field(
        default=False, description="also to Weights & Biases, as WANDB_* say (needs wandb)"
    )
