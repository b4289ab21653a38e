"""Counts, shares and times as people read them."""

from __future__ import annotations

import pytest

from foundation import quantities


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "trial", "0 trials"),
        (1, "trial", "1 trial"),
        (2, "success", "2 successes"),
        (1, "success", "1 success"),
        (1.0, "node-hour", "1 node-hour"),
        (0.25, "node-hour", "0.25 node-hours"),
        (9408, "node", "9,408 nodes"),
    ],
)
def test_one_is_singular(count, noun, text):
    assert quantities.counted(count, noun) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (12345.678, "12,346"), (24.4, "24.4"), (0.051114, "0.05111"), (-3.0, "-3"),
        (1200.0, "1,200"), (1e15, "1.000e+15"), (float("nan"), "–"),
    ],
)  # fmt: skip
def test_numbers_have_four_digits(value, text):
    assert quantities.number(value) == text


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (800, "800"), (5e6, "5 million"), (3e11, "300 billion"), (1.5e13, "15 trillion"),
        (1.152e10, "11.52 billion"), (1e15, "1,000 trillion"),
    ],
)  # fmt: skip
def test_tokens_are_counted_in_words(tokens, text):
    assert quantities.tokens_text(tokens) == f"{text} tokens"


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (31.4713, 0.7132, "31.5 ± 0.7"), (211_923.4, 1_523.0, "211,900 ± 1,500"),
        (0.998, 0.0019, "0.9980 ± 0.0019"), (2.5, 0.0, "2.5"), (2.5, float("nan"), "2.5"),
        (500.0, 4e-7, "500"),
    ],
)  # fmt: skip
def test_a_measured_value_has_as_many_digits_as_its_error_is_sure_of(value, error, text):
    assert quantities.measured(value, error) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.21, "4.2 s"), (200, "3 min 20 s"), (3599.8, "1 h 0 min"), (7500, "2 h 5 min"),
     (90000, "1 d 1 h")],
)  # fmt: skip
def test_durations_are_in_two_units(seconds, text):
    assert quantities.duration(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.123, "12 %"),
        (-0.0123, "-1.2 %"),
        (-1e-9, "0.0 %"),
        (0.0996, "10 %"),
        (1e999 - 1e999, "–"),
    ],
)
def test_a_share_has_two_digits(share, text):
    assert quantities.percent(share) == text
