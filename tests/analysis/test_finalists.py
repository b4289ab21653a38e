"""Which trial wins, how sure that is, and what is measured again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.finalists import (
    NOISE_LOG_SD,
    Noise,
    median_variance,
    next_repeat,
    noise_of,
    repeats_since_proposal,
    verdict,
)
from analysis.run.events import Ended, Proposed, Started
from analysis.run.fold import Run, apply
from analysis.run.frame import load
from support.run_book import RepeatBook

FOLDER = Path("run")
Write = Callable[..., Run]


@pytest.fixture
def book(tmp_path: Path) -> RepeatBook:
    return RepeatBook(tmp_path / "run")


def asked(run: Run, confidence: float = 0.9, max_repeats: int = 6, **how: Any) -> int | None:
    trial = next_repeat(run, confidence, max_repeats, **how)
    return None if trial is None else trial.number


# ---- what a trial is worth ----


def test_a_trial_is_worth_the_median_of_its_measurements(book: RepeatBook) -> None:
    run = book.run({1: [100.0, 40.0, 104.0]})
    trial = run.trials[1]
    assert trial.objective == 100.0
    assert trial.measurements == [100.0, 40.0, 104.0]
    assert trial.result["mark"] == 1  # the figures beside it are of the same measurement
    assert [a.repeat for a in trial.attempts] == [False, True, True]
    assert trial.ended_t == run.opened_t[0] + 30  # when it was first known


def test_of_two_measurements_every_figure_is_the_mean(tmp_path: Path) -> None:
    run = RepeatBook(tmp_path / "run").run({1: [100.0, 104.0]})
    trial = run.trials[1]
    assert trial.objective == 102.0
    assert trial.result == {"speed": 102.0, "mark": 1.5}


def test_a_lucky_winner_is_revised(book: RepeatBook) -> None:
    run = book.run({1: [100.0, 90.0, 89.0], 2: [95.0]})
    assert run.best is run.trials[2]


def test_a_repeat_whose_nodes_failed_says_nothing(book: RepeatBook) -> None:
    book.measure(1, 100.0)
    book.measure(1, None, "node_failure")
    trial = book.read().trials[1]
    assert (trial.kind, trial.objective, trial.failed_repeats) == ("ok", 100.0, 0)


def test_a_trial_whose_repeats_fail_more_often_than_not_has_failed(book: RepeatBook) -> None:
    book.measure(2, 80.0)
    book.measure(1, 100.0)
    book.measure(1, None, "oom")
    run = book.read()
    assert run.best is run.trials[1]
    assert asked(run, confidence=0.51) == 1  # one success, one failure: the third must say
    book.measure(1, None, "oom")
    run = book.read()
    assert (run.trials[1].kind, run.trials[1].objective) == ("oom", None)
    assert run.trials[1].message == "failed when it was measured again: attempt 3"
    assert run.best is run.trials[2]


def test_what_was_stopped_early_is_never_the_best_until_it_is_measured_whole(
    book: RepeatBook,
) -> None:
    book.measure(1, 70.0)
    book.measure(2, 75.0, early=True, saved_node_s=120.0)
    run = book.read()
    assert run.trials[2].ok and run.trials[2].stopped_early
    assert run.best is run.trials[1]
    assert run.trials[2].saved_node_s == 120.0
    book.measure(2, 76.0)
    run = book.read()
    assert run.trials[2].measurements == [76.0]
    assert run.best is run.trials[2]


def test_a_journal_from_before_repeats_is_read(book: RepeatBook) -> None:
    book.measure(1, 100.0)
    run = book.read()
    text = (book.directory / "journal.jsonl").read_text()
    assert "repeat" not in text and "early" not in text
    assert run.trials[1].measurements == [100.0]
    assert not run.trials[1].stopped_early
    frame = load(book.directory)
    assert list(frame["measurements"]) == [1]


# ---- noise ----


def test_the_variance_of_a_median_is_right() -> None:
    drawn = np.random.default_rng(0).standard_normal((200_000, 9))
    for count in range(1, 10):
        medians = np.median(drawn[:, :count], axis=1)
        ratio = median_variance(count) / float(np.var(medians))
        assert 0.96 < ratio < (1.03 if count % 2 else 1.25)


def test_noise_is_the_prior_before_anything_was_repeated(book: RepeatBook) -> None:
    assert noise_of(book.run({1: [100.0], 2: [50.0]})).log_sd == NOISE_LOG_SD


def test_noise_follows_the_repeats(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    found = {}
    for spread in (0.002, 0.1):
        book = RepeatBook(tmp_path / f"{spread}")
        speeds = {t: list(100 * np.exp(spread * rng.standard_normal(4))) for t in range(1, 20)}
        found[spread] = noise_of(book.run(speeds)).log_sd
    assert found[0.002] < 0.4 * NOISE_LOG_SD
    assert 0.07 < found[0.1] < 0.12


def test_one_disturbed_run_does_not_make_all_others_uncertain(tmp_path: Path) -> None:
    calm = {1: [100.0, 101.0, 100.5], 2: [90.0, 90.5, 90.2]}
    before = noise_of(RepeatBook(tmp_path / "calm").run(calm))
    calm[3] = [80.0, 30.0, 80.3]
    after = noise_of(RepeatBook(tmp_path / "disturbed").run(calm))
    assert after.log_sd < 2 * before.log_sd
    assert after.repeats == before.repeats + 2


# ---- who is measured again ----


def test_no_winner_is_settled_that_was_measured_only_once(book: RepeatBook) -> None:
    run = book.run({1: [100.0], 2: [20.0]})
    now = verdict(run)
    assert now is not None and now.confidence > 0.99
    assert asked(run) == 1
    book.measure(1, 101.0)
    assert asked(book.read()) is None


def test_equal_ones_within_a_percent_are_settled(book: RepeatBook) -> None:
    calm = [100.0, 100.1, 99.9, 100.0, 100.05, 99.95] * 2
    run = book.run({1: calm, 2: [x * 0.9995 for x in calm], 3: [50.0]})
    now = verdict(run)
    assert now is not None
    assert now.first.best < 0.8  # which of the two is better is open, and does not matter
    assert now.confidence > 0.9
    assert asked(run, max_repeats=100) is None


def test_the_less_measured_of_the_two_leading_ones_is_next(book: RepeatBook) -> None:
    book.run({1: [100.0], 2: [99.0], 3: [60.0]})
    assert asked(book.read()) == 1
    book.measure(1, 100.2)
    assert asked(book.read()) == 2


def test_running_repeats_count_as_if_they_confirmed_and_none_runs_twice(book: RepeatBook) -> None:
    run = book.run({1: [100.0], 2: [99.0], 3: [98.0], 4: [60.0]})
    first = asked(run)
    second = asked(run, running=[1])
    assert (first, second) == (1, 2)
    assert asked(run, running=[1, 2, 3]) is None  # 4 cannot win


def test_repeats_end_at_their_maximum_and_a_new_trial_allows_new_ones(book: RepeatBook) -> None:
    run = book.run({1: [100.0, 93.0], 2: [97.0, 98.0], 3: [96.0, 95.0]})
    assert repeats_since_proposal(run) == 1  # trials 2 and 3 were proposed after the others
    assert asked(run, confidence=0.99, max_repeats=1) is None
    assert asked(run, confidence=0.99, max_repeats=2) is not None
    assert asked(run, confidence=0.99, max_repeats=2, running=[1]) is None
    book.measure(4, 99.0)
    assert repeats_since_proposal(book.read()) == 0


def test_only_what_is_possible_is_repeated(book: RepeatBook) -> None:
    run = book.run({1: [100.0], 2: [99.0]})
    assert asked(run, possible=lambda trial: trial.number == 2) == 2
    assert asked(run, possible=lambda trial: False) is None


def test_two_measurements_that_contradict_each_other_need_a_third(book: RepeatBook) -> None:
    calm = {4: [60.0, 60.1], 5: [50.0, 50.3], 6: [45.0, 44.9]}
    run = book.run({1: [100.0, 45.0], 2: [90.0, 90.2], 3: [40.0, 20.0], **calm})
    assert run.best is run.trials[2]
    assert asked(run) == 1  # one of its two runs was disturbed; whichever of 3's was, it cannot win
    book.measure(1, 99.0)
    best = book.read().best
    assert best is not None and best.number == 1


def test_a_minimized_objective_works_the_same(tmp_path: Path) -> None:
    book = RepeatBook(tmp_path / "run", minimize=True)
    run = book.run({1: [1.0, 1.01], 2: [1.3]})
    now = verdict(run)
    assert now is not None and now.first.trial == 1
    assert run.best is run.trials[1]
    book.measure(3, 1.02)
    now = verdict(book.read())
    assert now is not None and now.runner_up is not None
    assert now.runner_up.trial == 3
    assert now.runner_up.behind == pytest.approx(1.02 / 1.005 - 1, rel=0.02)


def test_without_a_success_or_a_logarithm_there_is_no_verdict(book: RepeatBook) -> None:
    book.measure(1, None, "oom")
    assert verdict(book.read()) is None
    book.measure(2, -3.0)
    assert verdict(book.read()) is None
    assert asked(book.read()) is None


@pytest.mark.parametrize(("spread", "disturbed"), [(0.01, 0.0), (0.03, 0.0), (0.02, 0.1)])
def test_what_is_settled_is_right_as_often_as_said(spread: float, disturbed: float) -> None:
    """Whole finals over configurations whose true speeds are known."""
    rng = np.random.default_rng(0)
    said, right, lost, lost_before = [], [], [], []
    for _ in range(60):
        truth = -np.cumsum(rng.exponential(0.03, size=15))
        run, first = _final(rng, truth, spread, disturbed)
        now, winner = verdict(run), run.best
        assert now is not None and winner is not None
        lost_before.append(-truth[first])
        lost.append(truth.max() - truth[winner.number])
        if now.confidence >= 0.9:
            said.append(now.confidence)
            right.append(lost[-1] <= 0.01)
    assert len(said) > 15
    assert np.mean(right) > np.mean(said) - 0.15
    assert np.mean(lost) < np.mean(lost_before) - truth.max()


def test_where_runs_differ_by_a_tenth_the_confidence_is_not_far_too_high(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Six repeats do not settle it; with the weight of the prior elsewhere it is 0.3 too high."""
    monkeypatch.setattr("analysis.finalists.DRAWS", 1000)
    rng = np.random.default_rng(0)
    said, right = [], []
    for _ in range(100):
        truth = -np.cumsum(rng.exponential(0.03, size=15))
        run, _ = _final(rng, truth, 0.1, 0.0)
        now, winner = verdict(run), run.best
        assert now is not None and winner is not None
        said.append(now.confidence)
        right.append(truth.max() - truth[winner.number] <= 0.01)
    assert np.mean(said) - np.mean(right) < 0.2


def _final(
    rng: np.random.Generator, truth: np.ndarray, spread: float, disturbed: float
) -> tuple[Run, int]:
    run = Run(FOLDER, goals=[("speed", True)])

    def measure(trial: int, repeat: bool) -> None:
        slower = rng.uniform(0.2, 0.9) if rng.random() < disturbed else 0.0
        speed = float(np.exp(truth[trial] + spread * rng.standard_normal() - slower))
        attempt = len(run.trials[trial].attempts) + 1
        started = Started(trial=trial, attempt=attempt, name="", nodes=[], repeat=repeat)
        ended = Ended(
            trial=trial, attempt=attempt, kind="ok", objective=speed, message="", final=not repeat
        )
        apply(run, 1.0, started)
        apply(run, 1.0, ended)

    for trial in range(len(truth)):
        apply(run, 0.0, Proposed(trial=trial, config={}))
        measure(trial, False)
    assert run.best is not None
    first = run.best.number
    while again := next_repeat(run, 0.9, 6):
        measure(again.number, True)
    return run, first


def test_the_prior_weighs_as_it_says() -> None:
    assert noise_of(Run(FOLDER)) == Noise(NOISE_LOG_SD, 3.0)


def test_what_comes_out_the_same_to_the_last_digit_is_no_noise_and_not_repeated_further(
    book: RepeatBook,
) -> None:
    run = book.run({1: [2.5, 2.5], 2: [2.4]})
    assert noise_of(run).log_sd < 1e-6
    assert asked(run) is None
