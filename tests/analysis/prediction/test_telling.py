"""What a large run teaches the cost model."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.prediction import pricing as module
from analysis.prediction.pricing import Pricing
from analysis.run.trial import Trial
from search_spaces import Candidates, load_space


def test_every_success_of_a_large_run_teaches_and_the_failures_that_need_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FAILURES", 10)
    pricing = Pricing(load_space("gpt_22b_frontier"))
    configs = Candidates(pricing.space).draw(300, np.random.default_rng(0), [], 10**6)
    need = pricing.model.reported_peak_bytes(pricing.jobs_of(configs))
    trials = [
        Trial(n, dict(config), 0.0, kind="ok" if n % 9 == 0 else "oom", objective=1.0)
        for n, config in enumerate(configs)
    ]
    trials.append(Trial(300, dict(configs[0]), 0.0, kind="crash"))
    chosen = [t.number for t in pricing.telling(trials)]
    assert chosen == sorted(chosen) and set(range(0, 300, 9)) < set(chosen)
    failed = {n for n in range(300) if n % 9}
    near = failed & set(chosen)
    assert len(near) == 10 and len(chosen) == 34 + 10
    assert max(need[n] for n in near) <= min(need[n] for n in failed - near)


def test_of_too_many_successes_some_teach_evenly_over_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SUCCESSES", 5)
    pricing = Pricing(load_space("gpt_22b_frontier"))
    trials = [Trial(n, {}, 0.0, kind="ok", objective=1.0) for n in range(41)]
    assert [t.number for t in pricing.telling(trials)] == [0, 10, 20, 30, 40]
