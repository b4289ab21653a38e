"""The long sweep: every placement in every layout."""

from __future__ import annotations

from typing import Any

import pytest

from support.long_sweep import LongSweep
from support.placement_cases import (
    LAYOUTS,
    PLACEMENTS,
    QUANTIZED,
    REFERENCES,
    cases,
    holds_the_same,
    job,
    sends_what_was_predicted,
    trains_exactly,
    trains_nearly,
)

EVERY_EXACT = [
    *(
        job(model, placement, layout, recompute=("none", "selective", "full")[number % 3])
        for model, layouts in (("gpt", ("", "tp2", "pp2")), ("llama", LAYOUTS))
        for layout in layouts
        for number, placement in enumerate(PLACEMENTS)
    ),
    *(job(model, placement) for model in ("odd", "tiny") for placement in PLACEMENTS),
    *(job("odd", placement, "pp2") for placement in PLACEMENTS),
]


EVERY_NEAR = [
    job(model, placement, layout)
    for model, layouts in (("gpt", ("", "tp2", "pp2")), ("llama", LAYOUTS), ("odd", ("",)))
    for layout in layouts
    for placement in QUANTIZED
]


NARROW = [
    job("gpt", placement, name=precision, precision=precision, **more)
    for placement in PLACEMENTS
    for precision, more in (("bf16", {"reduce_precision": "bf16"}), ("fp16", {}))
]


@pytest.fixture(scope="module")
def every(run_ranks) -> dict[str, Any]:
    return LongSweep(run_ranks, REFERENCES, [*EVERY_EXACT, *EVERY_NEAR, *NARROW])


@pytest.mark.heavy
@pytest.mark.timeout(3000)
@cases(EVERY_EXACT)
def test_every_placement_trains_like_one_process(every: dict[str, Any], case: Any) -> None:
    trains_exactly(every, case)
    holds_the_same(every, case)
    sends_what_was_predicted(every, case)


@pytest.mark.heavy
@pytest.mark.timeout(3000)
@cases(EVERY_NEAR)
def test_every_quantized_placement_trains_nearly_alike(every: dict[str, Any], case: Any) -> None:
    trains_nearly(every, case)
    holds_the_same(every, case)
    sends_what_was_predicted(every, case)


@pytest.mark.heavy
@pytest.mark.timeout(3000)
@cases(NARROW)
def test_sixteen_bits_follow_float32_in_every_placement(every: dict[str, Any], case: Any) -> None:
    """Within the rounding of the format, as in ``test_exactness``."""
    precision = case["config"]["precision"]
    exact = {"bf16": 2**-8, "fp16": 2**-10}[precision]
    found = every[case["id"]]
    assert found["losses"] == pytest.approx(every["gpt"]["losses"], rel=exact)
    assert found["losses"] != pytest.approx(every["gpt"]["losses"], rel=1e-6)
    assert found["skipped_steps"] == 0
    holds_the_same(every, case)
    sends_what_was_predicted(every, case)
