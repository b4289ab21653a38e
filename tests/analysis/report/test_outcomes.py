"""Best so far, failures over time, and time without the gaps between sessions."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from analysis.report.outcomes import failures, ranked_trials, trajectory
from analysis.run.events import Closed
from analysis.run.fold import read_run


def test_trials_are_in_the_order_of_their_ends_and_the_best_never_gets_worse(build):
    run = read_run(build(60))
    frame = trajectory(run)
    assert frame["search_s"].is_monotonic_increasing
    best = frame["best"].dropna()
    assert best.is_monotonic_increasing
    assert best.iloc[-1] == run.best.objective == frame["objective"].max()


def test_the_best_of_a_minimized_objective_goes_down(build):
    run = read_run(build(60, minimize="step_time_s.median"))
    best = trajectory(run)["best"].dropna()
    assert best.is_monotonic_decreasing and best.nunique() > 1
    assert best.iloc[-1] == run.best.objective == ranked_trials(run)[0].objective


def test_time_between_sessions_is_left_out(journal):
    book = journal()
    book.run_one(0, {"tp": 1}, "ok", 1.0)
    book.write(Closed(reason="the allocation ends"))
    book.t += 86400
    book.open()
    book.run_one(1, {"tp": 2}, "ok", 2.0)
    assert trajectory(read_run(book.directory))["search_s"].tolist() == [62, 62 + 63]


def test_failures_are_counted_by_kind_with_the_first_message(journal):
    book = journal()
    for trial, kind in enumerate(["oom", "ok", "oom", "node_failure"]):
        book.run_one(trial, {"tp": trial}, kind, 1.0 if kind == "ok" else None, f"{kind} {trial}")
    table = pd.DataFrame(failures(read_run(book.directory))).set_index("kind")
    assert table["trials"].to_dict() == {"oom": 2, "node_failure": 1}
    assert table.loc["oom", "share"] == 0.5
    assert table.loc["oom", "node_hours"] == pytest.approx(40 / 3600)
    assert table["completed"].to_dict() == {"oom": True, "node_failure": False}
    assert table.loc["oom", "example"] == "oom 0"


def test_an_ok_trial_without_a_finite_objective_never_leads(journal):
    book = journal()
    book.run_one(0, {"tp": 1}, "ok", 4.0)
    book.run_one(1, {"tp": 2}, "ok", 3.0)
    run = read_run(book.directory)
    run.trials[0].objective = math.inf
    assert [t.number for t in ranked_trials(run)] == [1]
    assert trajectory(run)["best"].iloc[-1] == 3.0


def test_a_run_without_trials_has_an_empty_trajectory(journal):
    assert trajectory(read_run(journal().directory)).empty
