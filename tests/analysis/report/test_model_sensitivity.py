"""What the cost model says of parameters over a space, after a handful of trials."""

from __future__ import annotations

from pathlib import Path

import pytest
from scipy.stats import spearmanr

from analysis.prediction.pricing import Pricing
from analysis.report import forests, sensitivity as module
from analysis.report.forests import NotEnough
from analysis.report.outlook import Outlook
from analysis.report.sensitivity import model_sensitivity
from analysis.run.fold import Run
from search_spaces import load_space
from search_spaces.space import SearchSpace
from support.priced_run import priced_run

SPACE = "tiny_cpu"


@pytest.fixture(autouse=True)
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forests, "NUM_TREES", 30)
    monkeypatch.setattr(module, "NUM_REFITS", 5)


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return load_space(SPACE)


def test_eight_trials_rank_the_parameters_as_the_whole_space_does(space: SearchSpace) -> None:
    few = model_sensitivity(Outlook(priced_run(space, 8, {}), Pricing(space)))
    every = model_sensitivity(Outlook(priced_run(space, 150, {}), Pricing(space)))
    assert (few.trials, every.trials) == (8, 150)
    order = every.found.mean_abs
    assert spearmanr(few.found.mean_abs[order.index], order).statistic > 0.9
    assert few.found.total > 8 * few.trials  # configurations, not trials


def test_the_interval_is_of_draws_of_the_constants_and_narrows_with_trials(
    space: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NUM_REFITS", 12)  # of five, widths say little
    few, many = (
        model_sensitivity(Outlook(priced_run(space, n, {}), Pricing(space))).found for n in (2, 150)
    )
    first = many.mean_abs.index[0]
    wide, narrow = (
        (f.interval["high"] - f.interval["low"]).to_dict()[first] / f.mean_abs[first]
        for f in (few, many)
    )
    assert 0 < narrow < wide


def test_what_the_model_leaves_of_the_trials_counts_as_well(space: SearchSpace) -> None:
    name = "gas"
    values = [str(value) for value in space.parameters[name].values]
    slower = {f"{name}={value}": 1.5 ** (i % 2) for i, value in enumerate(values)}
    plain, odd = (
        model_sensitivity(Outlook(priced_run(space, 100, by), Pricing(space))).found.mean_abs
        for by in ({}, slower)
    )
    assert odd[name] / odd.sum() > plain[name] / plain.sum()


def test_an_objective_that_the_model_does_not_predict_is_refused(tmp_path: Path) -> None:
    space = load_space(SPACE)
    file = tmp_path / "s.yaml"
    text = space.frozen().replace(space.objective.key, "hardware_tflops_per_gpu", 1)
    assert "hardware_tflops_per_gpu" in text
    file.write_text(text)
    other = load_space(file, frozen=True)
    with pytest.raises(NotEnough, match="does not predict hardware_tflops_per_gpu"):
        Outlook(Run(Path()), Pricing(other))
