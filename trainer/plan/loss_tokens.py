"""Which tokens count in the loss. Torch-free."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from foundation.records import Described
from trainer.plan.annotations import Column


class Documents(Described):
    """What the boundaries of documents mean within a packed sample, named as Megatron's."""

    reset_attention_mask: Annotated[bool, Column("masks_documents")] = True
    """tokens see those of their own document only"""
    reset_position_ids: bool = True
    """positions count from the beginning of the document"""
    eod_mask_loss: bool = True
    """what follows a document's last token is not in the loss"""

    @property
    def splits_samples(self) -> bool:
        """Whether a token's place in its document matters, not only that in its sample."""
        return self.reset_attention_mask or self.reset_position_ids


class Goldfish(Described):
    """Tokens that are left out of the loss, so that the model cannot recite what it has read."""

    k: int = Field(default=4, ge=2, le=1_000_000)
    """one token of so many is left out"""
    h: int = Field(default=13, ge=1, le=1_000)
    """tokens before it that decide whether it is"""
    mask: Literal["hashed", "static"] = "hashed"
    """hashed: alike in every copy of a passage; static: the last of every k"""
