"""Metrics from log lines: the median of the steps that count."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from slurm.logs.patterns import FoundNothingError, LogFormat, Pattern
from support.log_metrics import metrics_of

TIME = LogFormat({"step_time_s": [Pattern(r"\(ms\): ([\d.]+)")]})


def lines(*times: float, first: int = 1) -> str:
    return "".join(
        f" iteration {i:8d}/ 10 | elapsed time per iteration (ms): {t} | lm loss: 9.1E+00 |\n"
        for i, t in enumerate(times, start=first)
    )


def test_the_median_after_the_warm_up_is_the_metric_and_not_the_last() -> None:
    text = lines(9000, 5000, 100, 130, 110, 4000)
    assert metrics_of(TIME, [text], warmup_steps=2) == {"step_time_s": pytest.approx(0.120)}


def test_fewer_lines_than_warm_up_steps_leave_the_last_one() -> None:
    assert metrics_of(TIME, [lines(9000, 800)], warmup_steps=5) == {"step_time_s": 0.8}


def test_the_step_after_a_checkpoint_or_an_evaluation_does_not_count() -> None:
    text = (
        lines(100, 102)
        + " successfully saved checkpoint from iteration 2 to /x [ t 0/1, p 0/1 ]\n"
        + lines(9000, 104, first=3)
        + "validation loss at iteration 4 | lm loss value: 8.1\n"
        + lines(7000, 106, first=5)
    )
    assert metrics_of(TIME, [text]) == {"step_time_s": pytest.approx(0.103)}


def test_numbered_steps_are_counted_once_however_many_ranks_print_them() -> None:
    log = LogFormat({"step_time_s": [Pattern(r"step:\s*(?P<step>\d+) .* time: (?P<value>[\d.]+)")]})
    text = "".join(
        f"[rank{r}]: \x1b[31mstep: {i} loss: 2 time: {t}\x1b[0m\n"
        for i, t in enumerate((9, 1, 2, 3), start=1)
        for r in range(3)
    )
    assert metrics_of(log, [text], warmup_steps=1) == {"step_time_s": 2}


def test_reductions_scales_and_other_variants() -> None:
    log = LogFormat(
        {
            "peak_memory_bytes": [Pattern(r"mem ([\d.]+)", unit="GiB", reduce="max")],
            "loss": [Pattern(r"nowhere ([\d.]+)"), Pattern(r"loss=([\d.]+)", reduce="last")],
            "score": [Pattern(r"score ([\d.]+)", scale=0.5, skip=0)],
        }
    )
    text = "mem 1 loss=3 score 2\nmem 3 loss=2 score 2\nmem 2 loss=1 score 2\n"
    found = metrics_of(log, ["", text], warmup_steps=1)
    assert found == {"peak_memory_bytes": 3 * 2**30, "loss": 1, "score": 1}


@pytest.mark.parametrize(
    "loss", ["lm loss: nan", "lm_loss: NaN", "'loss': 'inf'", "reduced_train_loss=-inf"]
)
def test_a_last_loss_that_is_not_finite_has_diverged(loss: str) -> None:
    text = lines(100, 100) + f" iteration 3/ 10 | {loss} | grad norm: nan |\n"
    assert metrics_of(TIME, [text])["status"] == "diverged"


def test_a_validation_that_was_not_run_is_no_divergence() -> None:
    text = lines(100, 100) + " iteration 3/ 10 | lm loss: 2.1 | val_loss: nan |\n"
    assert "status" not in metrics_of(TIME, [text])


def test_a_skipped_step_of_mixed_precision_is_no_divergence() -> None:
    text = "iteration 1 | lm loss: inf | number of nan iterations: 0 |\n" + lines(100, 100)
    assert metrics_of(TIME, [text]) == {"step_time_s": pytest.approx(0.1)}


def test_nothing_found_is_told() -> None:
    with pytest.raises(FoundNothingError, match=r"\(step_time_s\) in the last 4 MiB of standard"):
        metrics_of(TIME, ["", "hello\n"])


def test_amounts_so_far_and_their_seconds_make_one_rate() -> None:
    """Four digits spoil the difference of two lines, hardly that of the first and the last."""
    pattern = Pattern(r"tokens=(?P<value>\S+) t=(?P<seconds>\S+)", unit="", since_start=True)
    log = LogFormat({"tokens_per_second": [pattern]})
    text = "\n".join(f"tokens={2003 * i:.4g} t={10 + 2 * i}" for i in range(1, 12))
    found = metrics_of(log, [text, ""], warmup_steps=1)
    assert found["tokens_per_second"] == pytest.approx(2003 / 2, rel=1e-3)
    alone = metrics_of(log, ["tokens=600 t=3", ""])
    assert alone["tokens_per_second"] == 200


WHOLE = r"all: (?P<rate>\S+) in (?P<seconds>\S+)"


def test_lines_of_several_numbered_steps_count_by_the_steps_they_are_of() -> None:
    pattern = Pattern(r"step (?P<step>\d+) at (?P<value>\S+)", since_start=True, whole=WHOLE)
    text = "step 1 at 50\nstep 10 at 68\nstep 20 at 88\nstep 30 at 118\nall: 0.22 in 159\n"
    found = metrics_of(LogFormat({"step_time_s": [pattern]}), [text], warmup_steps=10)
    assert found == {"step_time_s": (2 + 3) / 2}


@pytest.mark.parametrize("totals", ["all: 1.2.3 in 159", "all: 0.2 in ."])
def test_totals_that_are_no_numbers_are_told(totals: str) -> None:
    log = LogFormat({"step_time_s": [Pattern(r"at (\S+)", whole=WHOLE)]})
    with pytest.raises(FoundNothingError, match="which is no number"):
        metrics_of(log, [f"at 5\n{totals}\n"])


@pytest.mark.parametrize(
    ("regex", "line", "whole"),
    [
        (r"([\d.]+) ms/step", "perte 5,9 | 812,4 ms/step", "812,4"),
        (r"([\d.]+) tok/s", "loss: 1.5 12,345 tok/s", "12,345"),
        (r"([\d.]+)$", "throughput: 1,012,345.5", "1,012,345.5"),
        (r"(\d+)$", "tok/s=12,345", "12,345"),
        (r"([\d.]+) ms", "time/step=1,812.4 ms", "1,812.4"),
        (r"([\d.]+) ms", "time per step=1,812.4 ms", "1,812.4"),
        (r"([\d.]+) s", "0,8124 s", "0,8124"),
    ],
)
def test_the_end_of_a_number_with_commas_is_no_number(regex: str, line: str, whole: str) -> None:
    with pytest.raises(FoundNothingError, match=f"the end of '{whole}': let its group take"):
        metrics_of(LogFormat({"speed": [Pattern(regex)]}), [line])


@pytest.mark.parametrize(
    ("regex", "line", "value"),
    [
        (r",([\d.]+)$", "7,812.4", 812.4),
        (r"([\d.]+)$", "7,5.9,812.4", 812.4),
        (r"([\d.]+)$", "step 7, 812.4", 812.4),
        (r"(\d+)$", "10,23456", 23456),
        (r"([\d.]+) ms", "step=5,812.4 ms", 812.4),
        (r"([\d.]+) tok/s", "2026-01-01 10:00:00,123 tok/s", 123),
        (r"([\d.,]+) tok/s", "12,345 tok/s", 12345),
    ],
)
def test_a_number_behind_a_comma_is_read(regex: str, line: str, value: float) -> None:
    assert metrics_of(LogFormat({"speed": [Pattern(regex)]}), [line]) == {"speed": value}


@pytest.mark.parametrize("line", ["1" * 99_000, "1," * 49_000, "1:11:11,1" * 11_000 + ","])
def test_a_line_of_many_digits_is_read_in_linear_time(line: str) -> None:
    began_s = time.process_time()
    with suppress(FoundNothingError):
        metrics_of(LogFormat({"speed": [Pattern(r"(\d)x")]}), [f"{line}1x"])
    assert time.process_time() - began_s < 10  # a minute where it is quadratic
