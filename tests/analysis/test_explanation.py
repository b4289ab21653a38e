"""What is said of one trial."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from analysis.explanation import differences, explain_trial
from analysis.run.folder import RunFolder
from search_spaces import load_space
from search_spaces.points.candidates import Candidates
from support.run_book import RunBook


def test_a_trial_is_explained_by_what_was_known_expected_and_measured(tmp_path: Path) -> None:
    book = RunBook(tmp_path / "run")
    book.run_one(1, {"tp": 1, "mbs": 4}, "ok", 2.0)
    book.run_one(2, {"tp": 4, "mbs": 4}, "ok", 1.0)
    told = {"objective": 2.5, "low": 2.2, "high": 2.6, "fits": 0.97, "gain": 0.1, "left": 0.2}
    book.propose(3, {"tp": 2, "mbs": 4}, "best under one of several models", told)
    book.start(3, nodes=["n000", "n001"])
    book.t += 30
    book.end(3, "ok", 2.0, result={"speed": 2.0})
    book.run_one(4, {"tp": 2, "mbs": 8}, "oom", None, "out of memory on rank 3")
    book.close()
    run = book.read()
    lines = explain_trial(run, run.trials[3])
    assert [line[12:] for line in lines] == [
        "3 of table4",
        "tp=2 mbs=4",
        "by forest after 2 min 7 s, with 2 trials ended",
        "best under one of several models",
        "trial 1 (2 speed): tp 1 -> 2",
        "2.5 speed (95 %: 2.2 to 2.6); probability to fit 97 %; this batch should "
        "gain 10 %; all untried configurations, 20 %",
        "2 speed; 20 % below the prediction, outside its interval",
        "attempt 1 on n000,n001: ok after 30.0 s, 2",
        "trial 1 (2 speed): tp 2 -> 1",
    ]
    run.trials[3].expected = {"objective": 2.5}
    said = "\n".join(explain_trial(run, run.trials[3]))
    assert "interval" not in said and "95 %" not in said and "20 % below the" in said
    failed = "\n".join(explain_trial(run, run.trials[4]))
    assert "expected    no prediction" in failed
    assert "ended       oom: out of memory on rank 3" in failed
    assert differences({"tp": 1, "vpp": 2}, {"tp": 1}) == "vpp 2 -> –"


def test_where_memory_and_time_of_a_trial_go_is_told_by_the_cost_model(tmp_path: Path) -> None:
    space = load_space("gpt_22b_frontier")
    book = RunBook(tmp_path / "run", {"maximize": space.objective.key})
    RunFolder(book.directory).create(space)
    (config,) = Candidates(space).draw(1, np.random.default_rng(0), [], 8)
    book.run_one(1, config, "ok", 90.0)
    book.run_one(2, config, "crash", None)  # teaches nothing
    book.close()
    run = book.read()
    said = "\n".join(explain_trial(run, run.trials[1]))
    assert "cost model, calibrated with 1 trial of this run:\nmemory: " in said
    assert "forward backward" in said and "#####" in said and "tokens per node-hour" in said
