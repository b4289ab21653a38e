"""Drawn worlds: the same from one seed, and not as the search believes."""

from __future__ import annotations

import numpy as np

from analysis.prediction.pricing import Pricing
from benchmarks.search.drawn import world


def test_a_seed_is_one_world_that_differs_from_what_the_search_is_told() -> None:
    first, again, other = world(0), world(0), world(2)
    assert first.configs == again.configs and first.kind == again.kind
    assert np.array_equal(first.measured_s, again.measured_s, equal_nan=True)
    assert other.space.name == first.space.name and len(other.indices) != len(first.indices)
    believed = Pricing(first.space).predict(first.configs).step_time_s
    assert np.median(np.abs(np.log(believed / first.seconds))) > 0.02


def test_answers_are_those_of_the_drawn_runs() -> None:
    drawn = world(0)
    for row in (*np.flatnonzero(drawn.ran)[:3], *np.flatnonzero(~drawn.ran)[:3]):
        config = drawn.configs[row]
        answer = drawn.answer(config)
        assert (answer.kind == "ok") == bool(drawn.ran[row])
        assert 0 <= drawn.share(config) <= 1
    assert max(drawn.share(config) for config in drawn.configs) == 1
