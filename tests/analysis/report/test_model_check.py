"""What the page says of the cost model, beside what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.cost.model import CostModel
from analysis.prediction.held_out import CrossValidation
from analysis.report import section
from analysis.report.drivers import doubt
from analysis.report.figures import COUNTERS, seen, stacks
from analysis.report.page import write_report
from search_spaces.cluster import Cluster, Link, Nic
from search_spaces.known import framework_named
from support.page import Page
from trainer.plan.jobs import jobs
from trainer.plan.model import ModelConfig

pytestmark = pytest.mark.usefixtures("quick_forests")
MESHTUNE = framework_named("meshtune")


def forecast(measured_over_predicted: float = 1.0, reports: str = "allocated") -> CrossValidation:
    """Of trials 0 to 2 of a 22B model: two that ran, and one that was out of memory."""
    shape = ModelConfig(
        num_layers=48, hidden_size=6144, num_heads=48, vocab_size=51200, seq_length=2048
    )
    columns = {
        "tp": [2, 2, 1], "pp": [4, 2, 1], "mbs": [1, 2, 4], "gas": [16, 8, 4],
        "dp": [2, 4, 16], "world_size": [16, 16, 16], "vpp": [1, 1, 1],
    }  # fmt: skip
    cluster = Cluster(
        name="m", gpus_per_node=8, memory_gib=64, peak_bf16_tflops=191,
        links=[Link(level="node", gpus=8, gb_per_s=100)], nic=Nic(count=4, gb_per_s=25),
    )  # fmt: skip
    rows = jobs({k: np.array(v) for k, v in columns.items()}, shape)
    framework = MESHTUNE.model_copy(update={"reports": reports})
    found = CostModel(cluster, framework).predict(rows)
    ran = np.array([1.0, 1.0, np.nan])
    return CrossValidation(
        trials=(0, 1, 2),
        prediction=found,
        before_s=found.step_time_s,
        held_out_s=found.step_time_s,
        held_out_bytes=found.peak_bytes,
        held_out_fits=np.array([0.9, 0.3, 0.1]),
        measured_s=measured_over_predicted * found.step_time_s * ran,
        measured_bytes=found.peak_bytes * ran,
        out_of_memory=np.array([False, False, True]),
    )


@pytest.fixture
def priced(journal) -> Path:
    book = journal()
    for trial, value in enumerate((10.0, 8.0)):
        book.run_one(trial, {"tp": trial}, "ok", value)
    book.run_one(2, {"tp": 2}, "oom", None, "out of memory")
    return book.directory


def test_the_page_shows_predictions_beside_what_was_measured(priced, monkeypatch):
    monkeypatch.setattr(section, "cross_validated", lambda run: forecast(1.25))
    page = Page(write_report(priced))
    text = " ".join(page.text.split())
    assert "Median error of the step time 20 % (before calibration: 20 %)" in text
    assert "Of 1 trial that ran out of memory, 1 was predicted to; of 2 that ran, 1 was" in text
    rows = page.source.split('id="forecast"')[1].split("</table>")[0].count("<tr>")
    assert rows == 1 + 3
    assert "stacks" in page.all("figure", "data-draw")
    assert "inaccurate here" not in text


def test_a_model_that_is_far_off_is_not_to_be_trusted(priced, monkeypatch):
    monkeypatch.setattr(section, "cross_validated", lambda run: forecast(1.4))
    assert "inaccurate here" in Page(write_report(priced)).text


def test_a_model_that_foresees_no_failure_is_not_to_be_trusted():
    one = forecast()
    failures = np.arange(6)
    many = replace(
        one,
        held_out_fits=np.where(failures < 3, 0.1, 0.9),
        **dict.fromkeys(("before_s", "held_out_s", "held_out_bytes"), np.ones(6)),
        **dict.fromkeys(("measured_s", "measured_bytes"), np.full(6, np.nan)),
        out_of_memory=np.ones(6, bool),
    )
    assert (many.foreseen, many.doubtful) == (3, False)
    assert replace(many, held_out_fits=np.where(failures < 2, 0.1, 0.9)).doubtful


def test_a_model_that_orders_trials_badly_is_not_to_be_trusted():
    told = np.array([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7])
    one = replace(
        forecast(), **dict.fromkeys(("before_s", "held_out_s", "measured_s"), told),
        held_out_bytes=told, measured_bytes=told, held_out_fits=told, out_of_memory=told < 0,
    )  # fmt: skip
    assert not one.doubtful and doubt(one) == ""
    swapped = replace(one, measured_s=told[[1, 0, 3, 2, 5, 4, 7, 6]])
    assert not swapped.doubtful
    backwards = replace(one, measured_s=told[[7, 3, 2, 4, 1, 5, 6, 0]])
    assert backwards.median_errors["time"] <= 0.2
    assert doubt(backwards).startswith("rank correlation -0.")
    # Where all are nearly equal their order says nothing.
    roots = {"measured_s": backwards.measured_s**0.5, "held_out_s": told**0.5}
    assert not replace(backwards, **roots).doubtful


def test_a_run_without_prices_has_no_word_of_the_model(priced, monkeypatch):
    monkeypatch.setattr(section, "cross_validated", lambda run: forecast())
    write_report(priced)
    told: list[str] = []
    monkeypatch.setattr(section, "cross_validated", lambda run: None)
    page = Page(write_report(priced, tell=told.append))
    assert told.count("report: comparing the cost model with the trials") == 1
    assert "report: What the cost model says" not in told
    assert "cost model" not in page.text
    assert "stacks" not in page.all("figure", "data-draw")


@pytest.mark.parametrize("reports", ["allocated", "reserved", "device"])
def test_memory_bars_count_what_the_measured_mark_beside_them_counts(reports: str) -> None:
    one = forecast(reports=reports)
    bars = stacks(one, [0, 1])
    sums = np.sum(list(bars["memory"]["parts"].values()), axis=0)
    every = {name: part[:2] / 2**30 for name, part in one.prediction.memory.as_dict().items()}
    outside = every.pop("framework")  # torch's own counters know nothing of it
    assert outside.min() > 0
    assert sums == pytest.approx(sum(every.values()) + (outside if reports == "device" else 0))
    assert bars["counted"] == COUNTERS[reports]
    assert bars["limit"] == (64 if reports == "device" else 0)  # all of the GPU's, only there
    assert bars["memory"]["measured"] == pytest.approx((one.measured_bytes[:2] / 2**30).tolist())


def test_parts_that_nobody_could_see_are_drawn_as_one():
    few = {"a": np.array([99.0, 1.0]), "b": np.array([0.4, 0.5]), "c": np.array([0.1, 0.2]),
           "d": np.zeros(2)}  # fmt: skip
    assert {k: v.tolist() for k, v in seen(few).items()} == {"a": [99.0, 1.0], "other": [0.5, 0.7]}
