"""What is said of a parameter."""

from __future__ import annotations

from support.models import GPT, LLAMA, whole
from trainer.model.parameters import slots


def test_weight_decay_spares_norms_and_biases() -> None:
    for stage in (whole(GPT), whole(LLAMA)):
        for slot in slots(stage):
            vector = "norm" in type(slot.module).__name__.lower() or slot.name == "bias"
            assert slot.traits.decays == (not vector)
