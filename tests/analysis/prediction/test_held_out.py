"""What the cost model says of a run's trials: by models that have not seen them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from analysis.prediction.held_out import cross_validated
from analysis.prediction.pricing import Pricing
from analysis.prediction.ranking import Ranking
from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import SearchSpace, check, load_space
from search_spaces.points.candidates import Candidates


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    """A run of trials whose steps take 1.3 times what the model says before it."""

    def make(count: int = 12, slow: int = -1, by_rate: bool = False) -> Run:
        space = load_space("gpt_175b_frontier")
        (tmp_path / "space.yaml").write_text(space.frozen())
        configs = _configs(space, count)
        prediction = Pricing(space).predict(configs)
        trials = {}
        for number, config in enumerate(configs):
            trial = trials[number] = Trial(number, config, 0.0)
            if prediction.fits[number] < 0.5:
                trial.kind = "oom"
                continue
            factor = 1.3 * (3 if number == slow else 1)
            trial.kind = "ok"
            trial.objective = float(prediction.tflops_per_gpu[number]) / factor
            trial.result = {
                "tflops_per_gpu": trial.objective,
                "peak_memory_bytes": 0.9 * float(prediction.peak_bytes[number]),
            }
            if not by_rate:
                step_s = factor * float(prediction.step_time_s[number])
                trial.result["step_time_s"] = {"median": step_s}
        return Run(tmp_path, trials=trials)

    return make


def _configs(space: SearchSpace, count: int) -> list[dict[str, object]]:
    """Three that fit for each one that does not."""
    drawn = Candidates(space).draw(20 * count, np.random.default_rng(5), [], 10**6)
    fits = Pricing(space).predict(drawn).fits
    good, bad = np.flatnonzero(fits > 0.9), np.flatnonzero(fits < 0.1)
    chosen = np.sort(np.concatenate([good[: count - count // 4], bad[: count // 4]]))
    return [space.canonical(drawn[i]) for i in chosen]


def test_what_the_model_learns_shows_in_trials_that_it_has_not_seen(
    run: Callable[..., Run],
) -> None:
    forecast = cross_validated(run(30))
    assert forecast is not None
    errors = forecast.median_errors
    assert errors["time_before"] == pytest.approx(1 - 1 / 1.3)
    assert errors["time"] < 0.06
    assert forecast.rank_correlation > 0.95
    assert not forecast.doubtful
    assert forecast.out_of_memory.sum() == 7
    assert (forecast.foreseen, forecast.false_alarms) == (7, 0)


def test_a_full_host_is_no_failure_that_the_gpus_memory_should_explain(
    run: Callable[..., Run],
) -> None:
    made = run()
    full = next(t for t in made.trials.values() if t.kind == "oom")
    full.kind = "host_oom"
    forecast = cross_validated(made)
    assert forecast is not None
    assert full.number not in forecast.trials
    assert forecast.out_of_memory.sum() == sum(t.kind == "oom" for t in made.trials.values())


def test_a_trials_own_time_does_not_reach_the_model_that_judges_it(run: Callable[..., Run]) -> None:
    calm = cross_validated(run())
    assert calm is not None
    slow = int(np.flatnonzero(~calm.out_of_memory)[0])
    upset = cross_validated(run(slow=slow))
    assert upset is not None
    assert upset.measured_s[slow] == pytest.approx(3 * calm.measured_s[slow])
    assert upset.held_out_s[slow] == calm.held_out_s[slow]
    assert upset.prediction.step_time_s[slow] > calm.prediction.step_time_s[slow]
    assert (upset.held_out_s != calm.held_out_s).any()


def test_a_trainer_that_reports_only_a_rate_is_compared_all_the_same(
    run: Callable[..., Run],
) -> None:
    forecast, known = cross_validated(run(by_rate=True)), cross_validated(run())
    assert forecast is not None and known is not None
    assert forecast.measured_s == pytest.approx(known.measured_s, nan_ok=True)


def test_a_run_without_a_space_or_without_trials_has_no_forecast(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    assert cross_validated(Run(run().directory)) is None
    (tmp_path / "space.yaml").unlink()
    assert cross_validated(Run(tmp_path, trials={0: Trial(0, {}, 0.0, kind="oom")})) is None


def test_a_cluster_without_links_costs_the_forecast_not_the_report(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    made = run()
    content = yaml.safe_load((tmp_path / "space.yaml").read_text())
    del content["cluster"]["nic"]
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(content))
    assert cross_validated(made) is None
    space = load_space(tmp_path / "space.yaml")
    assert "predicted to fit" in Ranking.likely_to_fit(check(space))


def test_peak_memory_is_compared_with_what_the_trainer_would_report(
    run: Callable[..., Run],
) -> None:
    made = run()
    pricing = Pricing(load_space("gpt_175b_frontier"))
    for trial in made.trials.values():
        if trial.ok:
            jobs = pricing.jobs_of([trial.config])
            [reported] = pricing.model.memory.peak_bytes(jobs, pricing.model.framework)
            assert reported < 0.97 * pricing.model.predict(jobs).peak_bytes[0]
            trial.result = {**trial.result, "peak_memory_bytes": float(reported)}
    forecast = cross_validated(made)
    assert forecast is not None
    assert forecast.median_errors["memory"] < 0.01
