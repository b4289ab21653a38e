"""Number formats of the computation, and loss scaling for the narrow one."""

from __future__ import annotations

import torch

from trainer.plan.fields import Precision
from trainer.plan.formats import Format

COMPUTE_DTYPE: dict[str, torch.dtype] = {
    Format.FP32: torch.float32,
    Format.BF16: torch.bfloat16,
    Format.FP16: torch.float16,
}
"""torch's dtypes of formats for computation and for unquantized collectives."""


class LossScaler:
    """Dynamic loss scaling (Micikevicius et al. 2018, section 3.2), for fp16 only.

    The scale halves on overflow, skipping that step, and doubles after ``interval`` steps without.
    """

    def __init__(
        self, precision: Precision, initial: float = 2.0**16, interval: int = 2000
    ) -> None:
        self.enabled = precision == "fp16"
        self.scale = initial if self.enabled else 1.0
        self.interval = interval
        self.good_steps = 0

    def update(self, finite: bool) -> bool:
        """Update the scale after a step; returns whether the step was done, not skipped."""
        if not self.enabled:
            return True
        self.good_steps += 1
        if not finite or self.good_steps == self.interval:
            self.scale *= 2.0 if finite else 0.5
            self.good_steps = 0
        return finite
