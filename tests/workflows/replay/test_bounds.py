"""Searches for the best within bounds on measured values, over a drawn landscape."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import CandidateSet, Observations, Posterior, Pricing
from analysis.prediction import posterior
from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import Candidates, load_space
from workflows.replay.landscape import Landscape
from workflows.replay.play import Played, play, policy_for
from workflows.simulation.workload import true_pricing

SPACE: Mapping[str, Any] = {
    "version": 1,
    "model": "llama_8b",
    "cluster": "dgx_h100",
    "trainer": {
        "command": [
            "train",
            "{tp}",
            "{pp}",
            "{mbs}",
            "{gas}",
            "{recompute}",
            "{arithmetic}",
            "{num_nodes}",
        ]
    },
    "parameters": {
        "num_nodes": [2],
        "tp": [1, 2, 4, 8],
        "pp": [1, 2],
        "mbs": [1, 2],
        "gas": [8, 32],
        "arithmetic": ["rounded", "exact"],
        "recompute": ["none", "full"],
    },
    "objective": {"maximize": "tokens_per_second"},
}


def landscape(seed: int, *bounds: str) -> Landscape:
    """What a cluster unlike the cost model's would measure; rounding is fast and costs loss."""
    space = load_space({**SPACE, "subject_to": list(bounds)})
    candidates = Candidates(space)
    indices = candidates.indices(10_000, np.random.default_rng(0), [], max_nodes=99)
    configs = [space.canonical(raw) for raw in candidates.configs(indices)]
    truth, rng = true_pricing(space, 1.0, seed), np.random.default_rng(seed)
    prediction = truth.predict(configs)
    peaks = truth.model.reported_peak_bytes(prediction.jobs)
    rounded = np.array([config["arithmetic"] == "rounded" for config in configs])
    speeds = prediction.tokens_per_second * np.exp(rng.normal(0, 0.05, len(configs)))
    speeds, losses = speeds * (1 + 0.3 * rounded), rng.normal(2.0, 0.02, len(configs)) + rounded

    def recorded() -> Any:
        for config, speed, peak, loss, fits in zip(
            configs, speeds, peaks, losses, prediction.fits, strict=True
        ):
            result = {"tokens_per_second": speed, "peak_memory_bytes": peak, "val_loss": loss}
            runs = fits > 0.5
            kind, reached = ("ok", speed) if runs else ("oom", None)
            yield Trial(0, config, 0.0, kind=kind, objective=reached, result=result)

    return Landscape.of(f"drawn {seed}", space, recorded())


def searched(drawn: Landscape, policy: str = "meshtune", trials: int = 6) -> Played:
    return play(drawn, policy_for(drawn, policy, 0), 0, max_trials=trials)


def test_the_search_finds_the_best_within_a_bound_sooner_than_without_its_probability(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = landscape(1, "peak_memory_bytes < 20 GiB")
    assert drawn.best < 0.95 * landscape(1).best
    with_it = searched(drawn).trials_to(0.05)
    monkeypatch.setattr(posterior, "satisfaction", lambda _, __, at, *more: np.ones(len(at)))
    without = searched(drawn, trials=with_it or 1).trials_to(0.05)
    assert with_it is not None and without is None


def test_trials_tell_which_others_satisfy_a_bound_on_a_metric_without_a_price() -> None:
    drawn = landscape(1, "val_loss < 2.5")
    pricing = Pricing(drawn.space)
    candidates = CandidateSet.shortlist(pricing, Candidates(drawn.space), 0)
    run = searched(drawn, "random", trials=8).run
    before, after = (
        Posterior(candidates, pricing.model, Observations.of(known)).satisfaction
        for known in (Run(Path()), run)
    )
    assert (before == 1).all()
    configs = candidates.candidates.configs(candidates.indices)
    exact = np.array([config["arithmetic"] == "exact" for config in configs])
    assert after[exact].min() > 0.6 > 0.4 > after[~exact].max()


@pytest.mark.parametrize("policy", ["meshtune", "random", "deephyper", "optuna"])
def test_no_policy_reports_a_best_beyond_a_bound(policy: str) -> None:
    if policy == "optuna":
        pytest.importorskip("optuna")
    drawn = landscape(1, "peak_memory_bytes < 20 GiB")
    run = searched(drawn, policy, trials=6).run
    assert any(t.violated for t in run.trials.values())
    fastest = max((t for t in run.trials.values() if t.ok), key=lambda t: t.objective or 0.0)
    assert fastest.violated
    assert run.best is None or run.best.bounded["peak_memory_bytes"] < 20 * 2**30


def test_a_search_that_only_violates_says_how_near_it_came() -> None:
    drawn = landscape(1, "peak_memory_bytes < 20 GiB")
    run = searched(drawn, "random", trials=6).run
    other = Run(Path(), subject_to=(type(run.subject_to[0]).of("peak_memory_bytes < 1 GiB"),))
    other.trials = {n: t for n, t in run.trials.items() if t.ok}
    for trial in other.trials.values():
        other.check_bounds(trial, trial.bounded)
    least = min(other.trials.values(), key=lambda t: t.bounded["peak_memory_bytes"])
    assert other.best is None
    assert f"the nearest is trial {least.number}: peak_memory_bytes" in other.no_best
