"""Interactions from SHAP, conditional parameters folded back, and where memory ends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.cost.model import Prediction
from analysis.prediction.pricing import Pricing
from analysis.report.figures import effects
from analysis.report.forests import folded
from analysis.report.interactions import dependence, interactions, memory_border
from analysis.report.outlook import Outlook
from analysis.report.sensitivity import objective_sensitivity
from analysis.run.fold import Run
from search_spaces import load_space


def frame(objective: np.ndarray, **columns: list[object]) -> pd.DataFrame:
    rows = {f"p:{name}": values for name, values in columns.items()}
    trial = np.arange(len(objective))
    return pd.DataFrame({"trial": trial, "kind": "ok", "objective": objective, **rows})


@pytest.fixture(scope="module")
def grid() -> pd.DataFrame:
    return pd.DataFrame(
        [(tp, mbs, pp) for tp in (1, 2, 4, 8) for mbs in (1, 2, 4, 8) for pp in (1, 2, 4, 8)],
        columns=["tp", "mbs", "pp"],
    )


def test_the_pair_whose_effects_depend_on_each_other_comes_first(grid: pd.DataFrame) -> None:
    together = 2.0 * np.log2(grid.tp) * np.log2(grid.mbs) + 5.0 * np.log2(grid.pp)
    columns = {name: grid[name].tolist() for name in grid}
    found = objective_sensitivity(frame(together.to_numpy(), **columns))
    (first, second, strength), *rest = interactions(found)
    assert {first, second} == {"tp", "mbs"}
    assert all(strength > 3 * other for _, _, other in rest)


def test_effects_that_only_add_up_hardly_interact(grid: pd.DataFrame) -> None:
    added = 2.0 * np.log2(grid.tp) + 3.0 * np.log2(grid.mbs) + 5.0 * np.log2(grid.pp)
    columns = {name: grid[name].tolist() for name in grid}
    found = objective_sensitivity(frame(added.to_numpy(), **columns))
    assert all(x < 0.15 * found.mean_abs.iloc[0] for _, _, x in interactions(found))


def test_the_record_of_dependence_has_each_row_with_its_value_and_effect(
    grid: pd.DataFrame,
) -> None:
    columns = {name: grid[name].tolist() for name in grid}
    found = objective_sensitivity(frame(grid.tp.to_numpy(float), **columns))
    record = dependence(found)["tp"]
    assert record["values"] == ["1", "2", "4", "8"]
    assert [int(record["values"][i]) for i in record["of"]] == grid.tp.tolist()
    assert record["shap"] == found.shap[:, 0].tolist()


def test_the_absence_of_a_conditional_parameter_counts_for_what_decides_it() -> None:
    rng = np.random.default_rng(0)
    pp = np.repeat([1, 2, 4], 40)
    vpp = [None if p == 1 else int(rng.choice([1, 2])) for p in pp]
    speed = np.where(pp == 1, 10.0, 0.0) + rng.normal(0, 0.1, len(pp))
    plain = objective_sensitivity(frame(speed, pp=pp.tolist(), vpp=vpp))
    assert plain.mean_abs["vpp"] > 0.2 * plain.mean_abs["pp"]
    needs_pp = SimpleNamespace(names={"pp"})
    space: Any = SimpleNamespace(conditions={"vpp": needs_pp, "not_there": needs_pp})
    whole = folded(plain, space)
    assert whole.mean_abs["vpp"] < 0.05 * whole.mean_abs["pp"]
    assert np.allclose(whole.shap.sum(axis=1), plain.shap.sum(axis=1))
    rows = {row["name"]: row for row in effects(whole)}
    assert rows["vpp"]["low"] <= rows["vpp"]["mean"] <= rows["vpp"]["high"]


def test_what_a_condition_reads_is_what_decides_it() -> None:
    conditions = load_space("tiny_cpu").conditions
    assert {name: c.names for name, c in conditions.items()} == {"zero_stage": {"tp", "pp"}}


def test_memory_ends_where_the_model_says_and_the_parameters_that_decide_it_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What rules a configuration out is not what the model expects.
    monkeypatch.setattr(Prediction, "may_fit", property(lambda self: np.ones(len(self.jobs))))
    space = load_space("gpt_175b_frontier_table4")
    run = Run(Path(), goals=[(space.objective.key, space.objective.maximize)])
    border = memory_border(Outlook(run, Pricing(space)))
    assert border is not None and 0 < border["share"] < 0.5
    names = [name for name, _ in border["decisive"]]
    assert {"pp", "tp"} <= set(names[:3])
    shares = [share for _, share in border["decisive"]]
    assert shares == sorted(shares, reverse=True) and 0 < sum(shares) < 1.2
    fits = np.array(border["fits"])
    pp = border["parameters"]["pp"]
    deepest = np.array(pp["of"]) == len(pp["values"]) - 1
    assert fits[deepest].mean() > fits[~deepest].mean()
