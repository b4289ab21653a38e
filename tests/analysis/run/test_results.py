"""``results.csv``: DeepHyper's columns, derived from the journal."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from analysis.report.outcomes import failures
from analysis.run.results import ResultsFile
from support.run_book import RunBook


def test_one_objective_is_a_column_in_which_failures_are_named(tmp_path: Path) -> None:
    book = RunBook(tmp_path / "run")
    book.run_one(1, {"tp": 2}, "ok", 5.0)
    book.run_one(2, {"tp": 4}, "oom", None)
    book.propose(3, {"tp": 8})  # has not ended
    run = book.read()
    ResultsFile(run.folder).write(run)
    assert run.folder.results_file.read_text().splitlines() == [
        "p:tp,objective,job_id,job_status,m:peak_memory_bytes,m:speed,m:status",
        "2,5.0,1,DONE,64424509440,5.0,ok",
        "4,F_oom,2,FAILED,,,",
    ]


def test_a_crash_that_runs_again_is_a_failure_until_it_does(tmp_path: Path) -> None:
    book = RunBook(tmp_path / "run")
    book.propose(1, {"tp": 2})
    book.start(1)
    book.end(1, "crash", message="No module named 'flash_attn'", final=False)
    run = book.read()
    ResultsFile(run.folder).write(run)
    assert run.folder.results_file.read_text().splitlines()[1:] == ["2,F_crash,1,FAILED"]
    (row,) = failures(run)
    assert (row["kind"], row["trials"], row["share"], row["nobodys"]) == ("crash", 1, 1.0, True)
    assert row["example"] == "No module named 'flash_attn'"
    book.start(1, attempt=2)
    assert not failures(book.read())


@pytest.mark.parametrize("text", ["=HYPERLINK(A1)", "+1+1", "@SUM(A1)", "-2+3", "\t=1"])
def test_text_of_a_trainer_is_no_formula(text: str, tmp_path: Path) -> None:
    book = RunBook(tmp_path / "run")
    book.propose(1, {"tp": 2})
    book.start(1)
    book.end(1, "ok", 5.0, result={"speed": 5.0, "note": text, "change": -2.5})
    run = book.read()
    ResultsFile(run.folder).write(run)
    (row,) = csv.DictReader(run.folder.results_file.read_text().splitlines())
    assert (row["m:note"], row["m:change"]) == (f"'{text}", "-2.5")


def test_several_objectives_are_columns_beside_whether_the_trial_is_pareto_optimal(
    tmp_path: Path,
) -> None:
    book = RunBook(tmp_path / "run", {"maximize": "speed"}, {"minimize": "num_nodes"})
    for number, reached in enumerate([(5.0, 1.0), (4.0, 2.0), None], start=1):
        book.run_one(number, {"tp": 2}, "ok" if reached else "oom", reached)
    run = book.read()
    ResultsFile(run.folder).write(run)
    lines = [line.split(",") for line in run.folder.results_file.read_text().splitlines()]
    assert lines[0][1:3] == ["objective_0", "objective_1"]
    assert lines[0][-1] == "pareto_efficient"
    assert [line[1:3] for line in lines[1:]] == [["5.0", "1.0"], ["4.0", "2.0"], ["F_oom"] * 2]
    assert [line[-1] for line in lines[1:]] == ["True", "False", "False"]


def test_the_file_is_written_only_while_it_is_stale(tmp_path: Path) -> None:
    book = RunBook(tmp_path / "run")
    run = book.read()
    results = ResultsFile(run.folder)
    results.catch_up(run)
    assert not run.folder.results_file.exists()
    results.stale = True
    results.catch_up(run)
    assert run.folder.results_file.exists() and not results.stale
