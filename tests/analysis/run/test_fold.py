"""The journal, folded: what a killed driver leaves behind, and trials that ran more than once."""

from __future__ import annotations

import math

import pytest

from analysis import load
from analysis.run.events import Started, to_record
from analysis.run.fold import read_run
from analysis.run.lines import FIRST, Lines, RunError, sealed


def test_a_torn_last_line_is_skipped(build):
    folder = build(5)
    whole = read_run(folder)
    with (folder / "journal.jsonl").open("a") as file:
        file.write('{"v": 2, "t": 17000000')
    assert read_run(folder) == whole


def test_a_whole_last_line_without_its_newline_counts_as_torn(build):
    folder = build(5)
    with (folder / "journal.jsonl").open("a") as file:
        file.write('{"v": 2, "t": 1700009999, "event": "closed", "reason": "later"}')
    assert read_run(folder).closed == "budget: all trials are done"


@pytest.mark.parametrize("damage", ["{torn", "", "[1]", '"text"', '{"t": 1}', "\udcff"])
def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(build, damage):
    path = build(5) / "journal.jsonl"
    lines = path.read_text().splitlines()
    lines[3] = damage
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"))
    with pytest.raises(RunError, match=r"journal\.jsonl:4: "):
        read_run(path.parent)


def test_an_unknown_version_is_an_error_that_names_both_versions(build):
    path = build(2) / "journal.jsonl"
    records = [{**record, "v": 9} for record in Lines(path)]
    path.write_bytes(sealed(records[0], FIRST)[0])
    with pytest.raises(RunError, match=r":1: journal version 9, this meshtune reads up to 2"):
        read_run(path.parent)


def test_an_event_of_a_trial_that_was_never_proposed_is_an_error_with_its_line(journal):
    book = journal()
    started = Started(trial=3, attempt=1, name="t3", nodes=["n"])
    lines = Lines(book.directory / "journal.jsonl")
    assert len(list(lines)) == 1
    with lines.path.open("ab") as file:
        file.write(sealed(to_record(started, book.t), lines.last)[0])
    with pytest.raises(RunError, match=r"journal\.jsonl:2: trial 3 was never proposed"):
        read_run(book.directory)


def test_a_folder_without_a_journal_is_an_error_that_says_what_is_missing(tmp_path):
    with pytest.raises(RunError, match=r"holds a journal\.jsonl"):
        read_run(tmp_path)


def test_a_requeued_trial_has_one_row_with_all_its_attempts(journal):
    book = journal()
    book.propose(0, {"tp": 2})
    book.start(0, nodes=("n000", "n001"))
    book.t += 100
    book.end(0, "node_failure", message="n001 went down", final=False)
    assert not read_run(book.directory).trials[0].ended
    assert load(book.directory).empty
    book.t += 1000
    book.start(0, attempt=2, nodes=("n002", "n003"))
    book.t += 60
    book.end(
        0, "ok", 20.5, attempt=2, result={"tflops_per_gpu": 20.5, "step_time_s": {"median": 1}}
    )

    row = load(book.directory).iloc[0]
    assert (row["attempts"], row["kind"], row["objective"]) == (2, "ok", 20.5)
    assert row["elapsed_s"] == 160
    assert row["node_hours"] == pytest.approx(320 / 3600)
    assert (row["started_s"], row["ended_s"], row["nodes"]) == (0, 1160, "n002,n003")
    assert row["m:step_time_s.median"] == 1
    kinds = [a.kind for a in read_run(book.directory).trials[0].attempts]
    assert kinds == ["node_failure", "ok"]


def test_time_between_a_killed_session_and_the_next_is_held_by_nobody(journal):
    book = journal()
    book.propose(0, {"tp": 2})
    book.start(0)
    book.t += 30
    book.propose(1, {"tp": 4})  # the last word of a driver that was killed
    book.t += 7200
    book.open()
    book.t += 1
    book.end(0, "cancelled", final=False)
    run = read_run(book.directory)
    assert run.trials[0].node_seconds == 30
    assert run.search_s(run.opened_t[-1]) == 30


def test_a_trial_that_ended_before_it_started_is_loaded(journal):
    book = journal()
    book.propose(0, {"tp": 2})
    book.t += 5
    book.end(0, "invalid", message="tp over num_heads")
    row = load(book.directory).iloc[0]
    assert (row["attempts"], row["nodes"], row["ended_s"]) == (0, "", 5)
    assert math.isnan(row["started_s"]) and math.isnan(row["objective"])


def test_what_was_expected_of_a_trial_stands_beside_what_was_measured(journal):
    book = journal()
    book.propose(0, {"tp": 2}, expected={"objective": 5.0, "low": 4.0, "high": 6.0, "fits": 0.9})
    book.start(0)
    book.end(0, "ok", 5.5)
    book.run_one(1, {"tp": 1}, "ok", 3.0)
    frame = load(book.directory)
    assert list(frame.columns[:4]) == ["trial", "p:tp", "objective", "expected"]
    told = frame[["expected", "expected_low", "expected_high", "expected_fits"]]
    assert list(told.iloc[0]) == [5.0, 4.0, 6.0, 0.9] and told.iloc[1].isna().all()


def test_the_frame_has_parameters_first_and_predictions_beside_what_was_measured(journal):
    book = journal()
    book.propose(1, {"tp": 1}, expected={"objective": 2.0, "low": 1.0, "high": 3.0})
    book.start(1)
    book.end(1, "ok", 2.5, result={"tflops_per_gpu": 2.5})
    book.run_one(2, {"tp": 1, "vpp": 2}, "oom", None)
    frame = load(book.directory)
    places = {name: place for place, name in enumerate(frame.columns)}
    assert list(frame.columns[:5]) == ["trial", "p:tp", "p:vpp", "objective", "expected"]
    assert min(places[name] for name in places if name.startswith("m:")) > places["early"]
    assert frame.attrs == {"objective": "tflops_per_gpu", "maximize": True}


def test_an_empty_run_loads_as_no_rows_with_the_usual_columns(journal):
    frame = load(journal().directory)
    assert len(frame) == 0
    assert {"trial", "kind", "objective", "elapsed_s"} <= set(frame.columns)


@pytest.mark.parametrize(("goal", "best"), [("maximize", 2), ("minimize", 0)])
def test_the_best_trial_follows_the_goal_and_the_earlier_of_equals_wins(journal, goal, best):
    book = journal(objective={goal: "step_time_s.median"})
    for trial, value in enumerate([1.0, 1.0, 3.0, 3.0]):
        book.run_one(trial, {"tp": trial}, "ok", value)
    run = read_run(book.directory)
    assert run.best is not None and run.best.number == best


def test_an_attempt_knows_how_many_steps_it_told_of(journal):
    book = journal()
    book.propose(0, {"tp": 2})
    book.start(0)
    book.end(0, "timeout", steps=0)
    book.propose(1, {"tp": 4})
    book.start(1)
    book.end(1, "timeout")
    trials = read_run(book.directory).trials
    assert [trials[n].attempts[0].steps for n in (0, 1)] == [0, None]
