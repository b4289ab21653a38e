"""What a run tells of itself while it trains. Torch-free."""

from __future__ import annotations

from pydantic import Field

from foundation.records import Described
from trainer.plan.limits import Steps


class Validation(Described):
    """The loss on held-out data, named as torchtitan's."""

    data: str = Field(min_length=1)
    """prefix of an indexed token file, as data"""
    freq: Steps = 10
    """steps between validations; also after the last"""
    steps: Steps = 1
    """global batches that are read, the same ones each time"""


class Metrics(Described):
    """Figures of single steps, in ``metrics.jsonl`` beside the configuration, and elsewhere."""

    log_freq: Steps = 1
    """steps between lines"""
    enable_tensorboard: bool = False
    """also for TensorBoard, in the folder tb (needs tensorboard)"""
    enable_wandb: bool = False
    """also to Weights & Biases, as WANDB_* say (needs wandb)"""
