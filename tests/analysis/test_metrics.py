"""Numbers of a trainer's result, by dotted key."""

from __future__ import annotations

import math

import pytest

from analysis.metrics import Metrics, MissingMetricError, is_number

RESULT = {"speed": 2, "step_time_s": {"median": 0.5, "all": [0.5]}, "fused": True, "name": "x"}


def test_a_dotted_key_leads_into_the_result() -> None:
    assert Metrics(RESULT).get("step_time_s.median") == 0.5
    assert Metrics(RESULT).required("speed") == 2.0


@pytest.mark.parametrize("key", ["fused", "name", "step_time_s", "step_time_s.all", "speed.median"])
def test_only_a_number_is_a_metric(key: str) -> None:
    assert Metrics(RESULT).get(key) is None
    with pytest.raises(MissingMetricError, match="fused, name, speed, step_time_s"):
        Metrics(RESULT).required(key)


def test_a_missing_number_is_named_with_what_follows_from_it() -> None:
    with pytest.raises(MissingMetricError) as caught:
        Metrics({}).required("energy_joules", wanted="joules_per_token")
    assert str(caught.value) == (
        "the result has no number 'energy_joules', from which 'joules_per_token' follows; "
        "it has nothing"
    )
    assert caught.value.key == "energy_joules"


def test_a_whole_number_beyond_any_float_is_infinite() -> None:
    assert Metrics({"speed": 10**400}).required("speed") == math.inf


def test_all_numbers_are_found_at_any_depth() -> None:
    assert Metrics(RESULT).all() == {"speed": 2, "step_time_s.median": 0.5}


def test_true_is_no_number() -> None:
    assert is_number(0) and is_number(math.nan) and not is_number(True)


def test_a_number_that_is_written_as_a_text_is_shown() -> None:
    with pytest.raises(MissingMetricError, match=r"no number 'speed' \(found '5'\); it has speed"):
        Metrics({"speed": "5"}).required("speed")
