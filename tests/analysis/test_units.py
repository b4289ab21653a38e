"""Metrics' names and units."""

from __future__ import annotations

import pytest

from analysis import units


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("tokens_per_second", "throughput (tokens/s)"),
        ("step_time_s.median", "median step time (s)"),
        ("tflops_per_gpu", "throughput (TFLOPS per GPU)"),
        ("checkpoint_s", "checkpoint (s)"),
        ("all_gather_bytes", "all gather (GiB)"),
        ("score", "score"),
    ],
)
def test_a_key_becomes_a_name_with_its_unit(key, label):
    assert units.label(key) == label


def test_bytes_are_shown_in_gib():
    assert units.scaled("peak_memory_bytes", 3 * 2**30) == 3
    assert units.scaled("tokens_per_second", 3.0) == 3
