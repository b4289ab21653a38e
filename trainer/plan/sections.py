"""Sections of a configuration: AdamW, its learning rate, tokens in the loss, validation, metrics.

Torch-free.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from foundation.records import Described
from trainer.plan.annotations import Column
from trainer.plan.limits import Steps


class OptimizerConfig(Described):
    """AdamW with global gradient-norm clipping."""

    lr: float = Field(default=3e-4, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    grad_clip: float = Field(default=1.0, ge=0)
    """0: no clipping"""


class LRScheduler(Described):
    """The learning rate over the steps: it rises, stays, and falls; named as torchtitan's.

    A step's rate depends on its number alone, so resuming from a checkpoint does not change it.
    """

    warmup_steps: int = Field(default=0, ge=0, le=1_000_000_000)
    """steps in which the rate rises from 0 to lr"""
    total_steps: Steps | None = None
    """steps of the whole training, at whose end the decay ends; default no decay"""
    decay_type: Literal["linear", "sqrt", "cosine"] = "linear"
    """how the rate falls; sqrt: as 1 - sqrt(share of the decay)"""
    decay_ratio: float | None = Field(default=None, gt=0, le=1)
    """share of total_steps in which the rate falls, the last ones: warm-up, stable, decay (WSD);
    default all steps after the warm-up"""
    min_lr_factor: float = Field(default=0.0, ge=0, le=1)
    """factor of lr where the decay ends, and after it"""

    @model_validator(mode="after")
    def _fits(self) -> LRScheduler:
        if self.total_steps is None:
            for name in ("decay_type", "decay_ratio", "min_lr_factor"):
                value = getattr(self, name)
                if value != type(self).model_fields[name].default:
                    raise ValueError(f"{name} {value} without an end: set total_steps")
            return self
        if self.warmup_steps + self._decay_steps(self.total_steps) > self.total_steps:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} and a decay of "
                f"{self._decay_steps(self.total_steps)} steps are more than total_steps "
                f"{self.total_steps}: lower warmup_steps or decay_ratio"
            )
        return self

    def _decay_steps(self, total_steps: int) -> int:
        if self.decay_ratio is None:
            return max(0, total_steps - self.warmup_steps)
        return round(total_steps * self.decay_ratio)

    def factor(self, step: int) -> float:
        """Factor in a step, from 0; the decay ends one step after the last, as in torchtitan."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.total_steps is None:
            return 1.0
        decay_steps = self._decay_steps(self.total_steps)
        into_decay = step - (self.total_steps - decay_steps)
        if into_decay <= 0:
            return 1.0
        done = min(1.0, into_decay / decay_steps) if decay_steps else 1.0
        left = {
            "linear": 1 - done,
            "sqrt": 1 - math.sqrt(done),
            "cosine": 0.5 * (1 + math.cos(math.pi * done)),
        }[self.decay_type]
        return self.min_lr_factor + (1 - self.min_lr_factor) * left


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
        """Whether attention or positions depend on the boundaries of documents."""
        return self.reset_attention_mask or self.reset_position_ids


class Goldfish(Described):
    """Tokens that are left out of the loss, so that the model cannot recite what it has read."""

    k: int = Field(default=4, ge=2, le=1_000_000)
    """one token in so many is left out"""
    h: int = Field(default=13, ge=1, le=1_000)
    """preceding tokens that decide whether a token is left out"""
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
