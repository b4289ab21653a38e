"""The loss scale."""

from __future__ import annotations

from trainer.model.precision import LossScaler


def test_the_loss_scale_halves_at_an_overflow_and_doubles_after_good_steps() -> None:
    scaler = LossScaler("fp16", initial=8.0, interval=2)
    assert [scaler.update(finite) for finite in (False, True, True, True)] == [
        False,
        True,
        True,
        True,
    ]
    assert scaler.scale == 8.0
    assert LossScaler("bf16").scale == 1.0
    assert LossScaler("fp32").update(finite=False)
