"""Bounds on measured values, as people write them."""

from __future__ import annotations

import pytest

from foundation.bounds import Bound


@pytest.mark.parametrize(
    "text, key, value",
    [
        ("val_loss < 2.1", "val_loss", 2.1),
        ("peak_memory_bytes<70GiB", "peak_memory_bytes", 70 * 2**30),
        ("step_time_s.median <= 850 ms", "step_time_s.median", 0.85),
        ("tokens_per_second >= 1,000,000", "tokens_per_second", 1e6),
        ("delta > -1e-3", "delta", -1e-3),
    ],
)
def test_a_bound_is_in_the_metrics_own_unit(text: str, key: str, value: float) -> None:
    bound = Bound.of(text)
    assert (bound.key, bound.value) == (key, pytest.approx(value))


@pytest.mark.parametrize(
    "text, says",
    [
        ("val_loss = 2.1", "accepted a metric, <, <=, > or >="),
        ("val_loss < 2.1 nats", "found the unit nats for val_loss, accepted a number without one"),
        ("memory < 7 GiB", "only metrics that end in bytes, s, joules, watts take units, as peak_"),
        ("peak_memory_bytes < 70 Gib", "accepted B, kB"),
        ("val_loss < 1e999", "accepted a finite number"),
        ("a + b < 3", "accepted a metric"),
    ],
)
def test_what_is_no_bound_is_refused_with_what_would_be(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("+", r"\+")):
        Bound.of(text)


def test_a_strict_bound_is_violated_by_its_own_value() -> None:
    assert Bound.of("x < 2").excess(2.0) > 0
    assert Bound.of("x <= 2").excess(2.0) == 0
    assert Bound.of("x > 2").excess(1.0) == 1


def test_a_violation_names_the_value_in_the_unit_that_was_written() -> None:
    bound = Bound.of("peak_memory_bytes < 70 GiB")
    assert bound.violation(70.5 * 2**30) == "peak_memory_bytes 70.5 GiB, not < 70 GiB"
    assert bound.violation(69 * 2**30) == ""
    median = Bound.of("step_time_s.median < 2 min")
    assert median.violation(150) == "step_time_s.median 2.5 min, not < 2 min"
