"""What is said of a run: its winner, its front, its repeats, its early stops."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from analysis.finalists import FINAL_WEIGHT, median_variance, noise_of
from analysis.verdict import standard_errors, verdict_lines
from support.run_book import RepeatBook, RunBook


@pytest.fixture
def book(tmp_path: Path) -> RepeatBook:
    return RepeatBook(tmp_path / "run")


def test_there_is_no_verdict_before_a_trial_was_measured_again(book: RepeatBook) -> None:
    assert verdict_lines(book.run({1: [100.0], 2: [99.0]})) == []


def test_the_verdict_is_told_with_its_runner_up(book: RepeatBook) -> None:
    run = book.run({1: [100.0, 101.0], 2: [97.0, 97.1], 3: [20.0]})
    (_, winner), (_, second), (_, noise) = verdict_lines(run, 0.5)
    assert re.match(
        r"trial 1, 100\.5 ± \d\.\d speed, measured twice; "
        r"\d\d % likely the best of the 3 measured, (over )?\d\d % likely within 1 % of it ",
        winner,
    )
    assert winner.endswith("(confidence 0.5 reached)")
    assert second == "trial 2, 3.4 % behind, measured twice"
    assert noise.endswith("between runs of one configuration")
    assert verdict_lines(run, 0.9999)[0][1].endswith("(confidence 0.9999 not reached)")
    assert set(standard_errors(run)) == {1, 2}
    assert standard_errors(run)[1] == pytest.approx(
        noise_of(run, FINAL_WEIGHT).log_sd * median_variance(2) ** 0.5
    )


def test_one_configuration_alone_is_not_said_to_be_the_best_of_any(book: RepeatBook) -> None:
    ((label, words),) = verdict_lines(book.run({1: [100.0, 101.0]}), 0.5)
    assert label == "winner"
    assert re.fullmatch(
        r"trial 1, 100\.5 ± 1\.7 speed, measured twice; no other configuration was", words
    )


@pytest.mark.parametrize("minimize", [False, True])
def test_a_faster_configuration_whose_repeats_failed_is_named(
    tmp_path: Path, minimize: bool
) -> None:
    book = RepeatBook(tmp_path / "run", minimize)
    better, worse = (60.0, 120.0) if minimize else (120.0, 60.0)
    for trial, speed in ((1, 100.0), (2, better), (3, worse)):
        book.measure(trial, speed)
        for _ in range(2):  # one failure more than measurements
            book.measure(trial, *((speed, "ok") if trial == 1 else (None, "crash")))
    told = [words for label, words in verdict_lines(book.read(), 0.5) if label == "dropped"]
    assert told == [
        f"trial 2, {better:.0f} speed at first, crash: failed when it was measured again: attempt 3"
    ]


def test_what_is_left_to_gain_is_what_the_search_last_expected(book: RepeatBook) -> None:
    run = book.run({1: [100.0], 2: [97.0], 3: [90.0]})
    run.trials[2].expected["left"], run.trials[3].expected["left"] = 0.3, 0.125
    assert verdict_lines(run) == [("headroom", "12 % expected in all that is untried")]


def test_early_stops_are_counted_with_what_they_saved(book: RepeatBook) -> None:
    book.measure(1, 70.0)
    assert verdict_lines(book.read()) == []
    book.measure(2, 75.0, early=True, saved_node_s=120.0)
    assert verdict_lines(book.read()) == [("early stop", "1 trial, 2 node-minutes saved")]
    book.measure(3, 75.0, early=True, saved_node_s=3.1416)
    assert verdict_lines(book.read()) == [("early stop", "2 trials, 2.05 node-minutes saved")]


def test_seconds_that_early_stops_saved_are_told_in_seconds(book: RepeatBook) -> None:
    book.measure(1, 70.0)
    book.measure(2, 75.0, early=True, saved_node_s=2.9886)
    assert verdict_lines(book.read()) == [("early stop", "1 trial, 3 node-seconds saved")]


def test_what_comes_out_the_same_again_has_no_noise(book: RepeatBook) -> None:
    *_, (label, words) = verdict_lines(book.run({1: [100.0, 100.0], 2: [97.0]}), 0.5)
    assert (label, words) == ("noise", "none between runs of one configuration")


def test_an_end_that_is_no_first_result_says_what_it_is(book: RepeatBook) -> None:
    book.measure(1, 100.0)
    book.measure(1, 90.0)
    book.measure(2, 75.0, early=True)
    run = book.read()
    first, second = run.trials[1].attempts
    [stopped] = run.trials[2].attempts
    assert run.attempt_text(run.trials[1], first) is None
    assert run.attempt_text(run.trials[1], second) == "repeated 90 speed; median of 2: 95"
    assert run.attempt_text(run.trials[2], stopped) == "stopped  75 speed; attempt 1"


def test_the_front_is_listed_with_the_objectives_of_its_first_trials(tmp_path: Path) -> None:
    book = RunBook(tmp_path / "run", {"maximize": "tokens_per_second"}, {"minimize": "num_nodes"})
    for number in range(1, 11):
        book.run_one(number, {"num_nodes": number}, "ok", (1000.0 * number, number))
    book.run_one(11, {"num_nodes": 12}, "ok", (500.0, 12))
    run = book.read()
    (label, text), first, *_, last = run.front_lines()
    assert (label, text) == ("front", "10 of 11 successes are Pareto-optimal")
    assert first == ("", "trial   10  10,000 tokens/s, 10 nodes")
    assert last == ("", "and 2 more")
    assert run.objectives_text(run.trials[2]) == "2,000 tokens/s, 2 nodes"


def test_a_run_with_one_objective_has_no_front_to_list(book: RepeatBook) -> None:
    assert book.run({1: [100.0]}).front_lines() == []
