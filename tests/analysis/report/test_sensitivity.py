"""Forests and SHAP over a landscape whose drivers are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis import load
from analysis.report import forests
from analysis.report.encoding import encode
from analysis.report.forests import NotEnough
from analysis.report.sensitivity import failure_sensitivity, objective_sensitivity


def table(count: int, target, **columns) -> pd.DataFrame:
    """A frame as ``load`` gives it; ``target`` maps a row to its objective."""
    frame = pd.DataFrame({"trial": range(count), "kind": "ok"}).assign(
        **{f"p:{name}": values for name, values in columns.items()}
    )
    frame["objective"] = [float(target(row)) for _, row in frame.iterrows()]
    return frame


@pytest.fixture
def frame(build) -> pd.DataFrame:
    return load(build(100))


def test_the_dominant_parameter_ranks_first_and_one_without_effect_far_below(frame):
    result = objective_sensitivity(frame)
    means = result.mean_abs
    assert list(means.index[:2]) == ["mbs", "tp"]
    assert means["num_nodes"] < 0.1 * means["mbs"]
    assert result.oob_score > 0.7
    assert result.n == (frame["kind"] == "ok").sum()


def test_shap_values_add_up_to_the_prediction_of_both_forests(frame):
    for result in (objective_sensitivity(frame), failure_sensitivity(frame)):
        total = result.base + result.shap.sum(axis=1)
        np.testing.assert_allclose(total, result.prediction, rtol=1e-9, atol=1e-9)
        assert result.shap.shape == (result.n, len(result.encoded.values.columns))


def test_one_absurd_figure_among_others_is_explained():
    frame = table(24, lambda row: 1e30 if row["p:x"] == 11 else 100.0 + row["p:x"], x=range(24))
    result = objective_sensitivity(frame)
    total = result.base + result.shap.sum(axis=1)
    np.testing.assert_allclose(total, result.prediction, atol=1e-9 * result.base)


def test_failures_are_driven_by_the_parameters_of_the_memory_rule(frame):
    result = failure_sensitivity(frame)
    assert set(result.mean_abs.index[:2]) == {"tp", "pp"}
    assert result.oob_score > result.base_rate + 0.1
    failed = float(np.mean(frame["kind"] == "oom"))
    assert result.base_rate == pytest.approx(max(failed, 1 - failed))
    tp = result.shap[:, result.encoded.values.columns.get_loc("tp")]
    high = result.encoded.values["tp"].to_numpy() == 8
    assert tp[high].mean() < 0 < tp[~high].mean()  # more shards, fewer failures


def test_the_bootstrap_interval_is_ordered_and_separates_the_dominant_parameter(frame):
    interval = objective_sensitivity(frame).interval
    assert (interval["low"] <= interval["high"]).all()
    assert interval.loc["mbs", "low"] > interval.drop("mbs")["high"].max()


def test_the_same_seed_gives_the_same_account_and_another_seed_another(frame):
    first, again, other = (objective_sensitivity(frame, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.shap, again.shap)
    pd.testing.assert_frame_equal(first.interval, again.interval)
    assert not np.array_equal(first.shap, other.shap)


def test_node_failures_say_nothing_of_what_drives_failure(frame):
    lost = frame.copy()
    lost["trial"] += 1000
    lost["kind"], lost["objective"] = "node_failure", float("nan")
    both = failure_sensitivity(pd.concat([frame, lost], ignore_index=True))
    assert both.n == len(frame)
    np.testing.assert_array_equal(both.shap, failure_sensitivity(frame).shap)


def test_parameters_of_every_type_are_ordered_and_inactive_lies_below():
    encoded = encode(
        pd.DataFrame(
            {
                "p:recompute": ["full", "none", "selective", "none"],
                "p:sequence_parallel": [True, False, None, True],
                "p:secondary_shard": [8, None, 2, 8],
                "p:mode": ["b", 2, "a", 16],
                "p:precision": ["bf16"] * 4,
                "objective": [1.0] * 4,
            }
        )
    )
    values = encoded.values
    assert values["recompute"].tolist() == [2, 0, 1, 0]
    assert values["sequence_parallel"].tolist() == [1, 0, -1, 1]
    assert values["secondary_shard"].tolist() == [8, 1, 2, 8]
    assert values["mode"].tolist() == [3, 0, 2, 1]
    assert encoded.inactive["secondary_shard"].tolist() == [False, True, False, False]
    assert [*encoded.words["secondary_shard"].values()] == ["2", "8"]
    assert [*encoded.words["sequence_parallel"].values()] == ["false", "true"]
    assert encoded.constant == {"precision": "bf16"}


def test_words_that_a_space_orders_keep_their_order(journal):
    book = journal()
    words = ["tiny", "small", "large"]
    space = (
        "version: 1\nname: s\nobjective: {maximize: speed}\ntrainer: {command: ['true']}\n"
        f"parameters: {{size: {{ordered: [{', '.join(words)}]}}, color: [red, blue]}}\n"
    )
    (book.directory / "space.yaml").write_text(space)
    for number in range(6):
        config = {"size": words[number % 3], "color": ["red", "blue"][number % 2]}
        book.run_one(number, config, "ok", 1.0 + number)
    encoded = encode(load(book.directory))
    assert encoded.values["size"].tolist() == [0, 1, 2, 0, 1, 2]
    assert [*encoded.words["size"].values()] == ["tiny", "small", "large"]
    assert encoded.values["color"].tolist() == [1, 0, 1, 0, 1, 0]  # no order: the alphabet's


def test_a_parameter_that_is_always_inactive_is_constant():
    encoded = encode(pd.DataFrame({"p:vpp": [None, None], "p:tp": [1, 2]}))
    assert encoded.constant == {"vpp": None}
    assert list(encoded.values) == ["tp"]


def test_words_drive_the_objective_as_numbers_do():
    modes = ["none", "selective", "full"] * 10
    cost = {"none": 0, "selective": 10, "full": 3}
    result = objective_sensitivity(
        table(30, lambda row: cost[row["p:recompute"]] + row["p:mbs"] / 100,
              recompute=modes, mbs=[i * 7 % 30 for i in range(30)])
    )  # fmt: skip
    assert result.mean_abs.index[0] == "recompute"


def test_a_single_parameter_is_enough():
    result = objective_sensitivity(table(20, lambda row: row["p:mbs"], mbs=range(20)))
    assert result.shap.shape == (20, 1)
    assert result.warnings == ()


def test_a_poor_forest_is_said_to_be_poor():
    noise = np.random.default_rng(0).normal(size=40)
    result = objective_sensitivity(
        table(40, lambda row: noise[row["trial"]], a=[i % 4 for i in range(40)], b=range(40))
    )
    assert result.oob_score < 0.5
    assert any("R²" in warning for warning in result.warnings)


def test_few_trials_for_many_parameters_are_said_to_be_few():
    columns = {name: [(i * k) % 11 for i in range(12)] for k, name in enumerate("abcd", start=1)}
    result = objective_sensitivity(table(12, lambda row: row["p:a"], **columns))
    assert any("Only 12 successes for 4 parameters" in warning for warning in result.warnings)


@pytest.mark.parametrize(
    ("count", "columns", "message"),
    [
        (0, {"mbs": []}, "No successful trials so far"),
        (1, {"mbs": [1]}, "1 successful trial so far"),
        (7, {"mbs": range(7)}, "7 successful trials so far; .* at least 8"),
        (12, {"mbs": [4] * 12}, "No parameter varied among the 12 successful trials"),
    ],
)
def test_too_little_for_a_regression_is_refused_in_plain_words(count, columns, message):
    with pytest.raises(NotEnough, match=message):
        objective_sensitivity(table(count, lambda row: row["trial"], **columns))


def test_an_objective_that_never_varied_is_refused():
    with pytest.raises(NotEnough, match="the same objective"):
        objective_sensitivity(table(12, lambda row: 5, mbs=range(12)))


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["ok"] * 12, "No trial failed because of its configuration"),
        (["oom"] * 12, "All 12 trials failed: none fits into memory"),
        (["oom"] * 6 + ["crash"] * 6, "All 12 trials failed: look for what they have in common"),
        (["oom"] * 2 + ["ok"] * 10, "at least 3 of each"),
        (["node_failure"] * 12, "No trials so far"),
        (["oom", "ok"] * 3, "6 trials so far"),
    ],
)
def test_too_little_for_a_classifier_is_refused_in_plain_words(kinds, message):
    frame = table(len(kinds), lambda row: 1, mbs=range(len(kinds))).assign(kind=kinds)
    with pytest.raises(NotEnough, match=message):
        failure_sensitivity(frame)


def test_a_sample_and_smaller_trees_rank_as_all_trials_and_whole_trees_do(monkeypatch):
    rng = np.random.default_rng(1)
    columns = {
        "mbs": rng.integers(1, 17, 900),
        "tp": 2 ** rng.integers(0, 4, 900),
        "gas": rng.integers(1, 6, 900),
        "pp": 2 ** rng.integers(0, 4, 900),
    }

    def figure(row):
        cost = 3.0 * row["p:tp"] + (row["p:pp"] - 1) / row["p:gas"]
        return 100 + 2.0 * row["p:mbs"] - cost

    frame = table(900, figure, **columns)
    some = objective_sensitivity(frame)
    assert (some.n, some.total) == (forests.EXPLAINED, 900)
    np.testing.assert_allclose(some.base + some.shap.sum(axis=1), some.prediction, rtol=1e-9)
    assert np.isin(some.trial, frame["trial"]).all() and len(some.encoded.values) == some.n
    explained = frame.set_index("trial").loc[some.trial, "objective"]
    assert explained.quantile([0.1, 0.5, 0.9]).to_numpy() == pytest.approx(
        frame["objective"].quantile([0.1, 0.5, 0.9]).to_numpy(), abs=1.0
    )
    monkeypatch.setattr(forests, "EXPLAINED", 900)
    monkeypatch.setattr(forests, "MAX_LEAVES", None)
    every = objective_sensitivity(frame)
    assert list(some.mean_abs.index) == list(every.mean_abs.index)
    assert (some.mean_abs - every.mean_abs).abs().max() < 0.05 * every.mean_abs.max()
    spread = some.interval.loc[some.mean_abs.index]
    assert spread["low"].le(some.mean_abs).all() and spread["high"].ge(some.mean_abs).all()
