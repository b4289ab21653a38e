"""Sections of a configuration: tokens in the loss, validation, metrics. Torch-free."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from foundation.records import Described
from trainer.plan.annotations import Column
from trainer.plan.limits import Steps


class Documents(Described):
    """Meaning of document boundaries within a packed sample; names are Megatron's."""

    reset_attention_mask: Annotated[bool, Column("masks_documents")] = True
    """tokens attend to their own document only"""
    reset_position_ids: bool = True
    """positions count from the beginning of the document"""
    eod_mask_loss: bool = True
    """the token after a document's last one is not in the loss"""

    @property
    def splits_samples(self) -> bool:
        """Whether a token's place in its document matters, not only that in its sample."""
        return self.reset_attention_mask or self.reset_position_ids


class Goldfish(Described):
    """Tokens that are left out of the loss, so that the model cannot recite what it has read."""

    k: int = Field(default=4, ge=2, le=1_000_000)
    """one token in so many is left out"""
    h: int = Field(default=13, ge=1, le=1_000)
    """tokens before it that decide whether it is"""
    mask: Literal["hashed", "static"] = "hashed"
    """hashed: alike in every copy of a passage; static: the last of every k"""


class Validation(Described):
    """The loss on held-out data; names are torchtitan's."""

    data: str = Field(min_length=1)
    """prefix of an indexed token file, as data"""
    freq: Steps = 10
    """steps between validations; also after the last"""
    steps: Steps = 1
    """global batches that are read, the same ones each time"""


class Metrics(Described):
    """Metrics of single steps, in ``metrics.jsonl`` beside the configuration, and elsewhere."""

    log_freq: Steps = 1
    """steps between lines"""
    enable_tensorboard: bool = False
    """also for TensorBoard, in the folder tb (needs tensorboard)"""
    enable_wandb: bool = False
    """also to Weights & Biases, as WANDB_* say (needs wandb)"""
