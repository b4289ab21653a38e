"""The page: complete, self-contained, escaped; and it says so when there is little to show."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from analysis.cost.model import CostModel
from analysis.prediction.held_out import CrossValidation
from analysis.report import tables
from analysis.report.drivers import doubt
from analysis.report.figures import COUNTERS, embedded, seen, stacks
from analysis.report.page import write_report
from analysis.report.sections import SECTIONS
from analysis.report.trajectory import ranked_trials
from analysis.run.best import Best
from analysis.run.fold import read_run
from analysis.run.lines import RunError
from search_spaces.cluster import Cluster, Link, Nic
from search_spaces.known import framework_named
from trainer.plan.jobs import jobs
from trainer.plan.model import ModelConfig

pytestmark = pytest.mark.usefixtures("quick_forests")
MESHTUNE = framework_named("meshtune")

VOID = {"meta", "img", "br", "hr", "link", "input", "wbr"}
HOSTILE = "<script>alert(1)</script>\"' onload=x & $\\frac{ {{ 7*7 }} \x1b[2J\u202e\ud800"


class Page(HTMLParser):
    """What a browser would see: text, tags with attributes, rows of tables."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data):
        if "style" not in self.open and "script" not in self.open:
            self.text += data

    def all(self, tag: str, attribute: str) -> list[str]:
        found = [attrs for name, attrs in self.tags if name == tag and attribute in attrs]
        return [attrs[attribute] or "" for attrs in found]


@pytest.fixture(scope="module")
def big(big_run) -> Path:
    """A run of 100 trials with its report written, shared by the tests that only read it."""
    write_report(big_run)
    return big_run


@pytest.fixture(scope="module")
def page(big) -> Page:
    return Page(big / "report" / "index.html")


def test_the_page_needs_nothing_but_itself(page):
    assert page.open == []
    assert all(link.startswith(("../trials/", "#")) for link in page.all("a", "href"))
    assert not page.all("script", "src") and not page.all("link", "href")
    for word in ("http://", "https://", "url(", "@import", "//cdn"):
        assert word not in page.source


def test_every_trial_is_in_the_table_with_links_to_its_logs(big, page):
    rows = [row for row in page.all("tr", "id") if row.startswith("trial-")]
    assert rows == [f"trial-{number}" for number in range(100)]
    links = set(page.all("a", "href"))
    for number in range(100):
        assert f"../trials/{number:04d}/stderr.log" in links
    files = [link for link in links if not link.startswith("#")]
    assert all((big / "report" / link).exists() for link in files)


def test_figures_are_the_pages_own_and_nothing_lies_beside_it(big, page):
    drawn = {"history", "effects", "dependence", "parallel", "heat", "slices", "edf", "nodes"}
    assert set(page.all("figure", "data-draw")) == drawn
    assert {p.name for p in (big / "report").iterdir()} == {"index.html", "best.yaml"}


def test_the_page_shows_scores_and_units(page):
    text = " ".join(page.text.split())
    assert "out-of-bag R² = 0." in text and "out-of-bag accuracy" in text
    assert "throughput (TFLOPS per GPU)" in text and "peak memory (GiB)" in text
    assert "seed 0" in text


def test_the_best_configuration_trains_again(big):
    best = Best.read(big / "report" / "best.yaml")
    trial = read_run(big).best
    assert best.train == json.loads((big / f"trials/{trial.number:04d}/config.json").read_text())
    assert (best.num_nodes, best.ranks_per_node) == (trial.config["num_nodes"], 8)
    content = yaml.safe_load((big / "report" / "best.yaml").read_text())
    assert content["parameters"] == trial.config
    assert content["objective"] == {"maximize": "tflops_per_gpu", "value": trial.objective}


def test_the_best_of_the_users_own_trainer_is_its_command(journal):
    book = journal()
    book.run_one(0, {"tp": 4}, "ok", 10.0)
    argv = ["./train.sh", "--tp=4", "a: b # c"]
    spec = {"name": "x", "argv": argv, "num_nodes": 2, "ranks_per_node": 4, "env": {"A": "1"}}
    (book.directory / "trials/0000/trial.json").write_text(json.dumps(spec))
    write_report(book.directory)
    best = Best.read(book.directory / "report" / "best.yaml")
    assert (best.train, best.command, best.env) == (None, tuple(argv), {"A": "1"})


def test_a_missing_trial_folder_costs_best_yaml_but_not_the_report(journal):
    book = journal()
    book.run_one(0, {"tp": 4}, "ok", 10.0)
    write_report(book.directory)
    (book.directory / "trials/0000/trial.json").unlink()
    path = write_report(book.directory)
    assert not (path.parent / "best.yaml").exists()
    assert "cannot be read" in Page(path).text


def test_text_from_logs_and_spaces_is_escaped_and_never_breaks_a_figure(journal):
    book = journal(name="hostile", objective={"maximize": "$x_{<b>"})
    for trial in range(24):
        kind = "crash" if trial % 3 == 0 else "ok"
        config = {"mode$": HOSTILE if trial % 2 else "plain", "<i>tp</i>": trial}
        book.run_one(
            trial, config, kind, None if kind == "crash" else float(trial + 1), HOSTILE,
            HOSTILE.replace("\ud800", ""),
        )  # fmt: skip
    page = Page(write_report(book.directory))
    kinds = [attrs.get("type") for name, attrs in page.tags if name == "script"]
    assert kinds == ["application/json", None]  # the data, and what reads it
    assert "<script>alert" not in page.source and "<i>tp" not in page.source
    assert "<script>alert(1)</script>" in page.text and "{{ 7*7 }}" in page.text
    assert "\x1b" not in page.source and "\u202e" not in page.source
    assert r"\x1b[2J\u202e" in page.text
    assert not any("onload" in attrs for _, attrs in page.tags)


def test_a_minimized_objective_is_named_and_ranked_as_such(build):
    folder = build(40, minimize="step_time_s.median")
    text = " ".join(Page(write_report(folder)).text.split())
    assert "Minimizes median step time (s)" in text
    assert "which is worse here" in text
    values = [t.objective for t in read_run(folder).trials.values() if t.ok]
    content = yaml.safe_load((folder / "report" / "best.yaml").read_text())
    assert content["objective"] == {"minimize": "step_time_s.median", "value": min(values)}


def test_a_run_without_trials_has_a_page_that_says_so(journal):
    path = write_report(journal().directory)
    assert "No trial has been proposed yet" in Page(path).text
    assert not (path.parent / "best.yaml").exists()


def test_a_run_of_failures_alone_says_that_nothing_succeeded(journal):
    book = journal()
    for trial in range(10):
        book.run_one(trial, {"tp": trial}, "oom", None, "out of memory")
    text = Page(write_report(book.directory)).text
    assert "No trial has succeeded" in text
    assert "No successful trials so far" in text
    assert "All 10 trials failed: none fits into memory" in text


def test_a_run_of_successes_alone_with_one_parameter_has_its_sensitivity(journal):
    book = journal()
    for trial in range(10):
        book.run_one(trial, {"tp": trial}, "ok", 5.0 + trial)
    path = write_report(book.directory)
    assert "No trial has failed." in Page(path).text
    drawn = Page(path).all("figure", "data-of")
    assert "trials" in drawn and "failure" not in drawn


def test_a_few_trials_show_what_there_is_and_what_is_missing(build):
    path = write_report(build(5))
    page = Page(path)
    assert "a sensitivity analysis needs at least 8" in page.text
    assert "effects" not in page.all("figure", "data-draw")


def test_trials_that_have_not_ended_are_in_the_table(journal):
    book = journal()
    book.run_one(0, {"tp": 1}, "ok", 1.0)
    book.propose(1, {"tp": 2})
    book.start(1)
    book.propose(2, {"tp": 4})
    page = Page(write_report(book.directory))
    assert {"trial-0", "trial-1", "trial-2"} <= set(page.all("tr", "id"))
    assert "running" in page.text and "pending" in page.text and "2 not ended" in page.text


def test_every_trial_says_who_chose_it_why_and_what_was_expected(journal):
    book = journal(objective={"minimize": "peak_memory_bytes"})
    expected = {"objective": 2.0**31, "low": 2.0**30, "high": 2.0**32, "fits": 0.987}
    book.propose(0, {"tp": 1}, "highest <bound>", expected | {"gain": 0.02, "left": 0.031})
    book.propose(1, {"tp": 2}, "", {"fits": 0.5})
    page = Page(write_report(book.directory))
    assert "forest" in page.text
    assert (
        "highest <bound>; expected: 2 GiB (95 %: 1 to 4); probability to fit 99 %; this batch "
        "should gain 2 %; all untried configurations, 3.1 %"
    ) in page.text
    assert "expected: probability to fit 50 %" in page.text


def test_parameters_that_never_varied_are_named(journal):
    book = journal()
    for trial in range(10):
        book.run_one(trial, {"tp": trial, "precision": "bf16"}, "ok", 5.0 + trial)
    text = " ".join(Page(write_report(book.directory)).text.split())
    assert "Left out, since it never varied: precision = bf16." in text


def test_a_folder_that_is_no_run_is_left_alone(tmp_path):
    with pytest.raises(RunError):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


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


def test_the_page_shows_predictions_beside_what_was_measured(priced):
    page = Page(write_report(priced, validate=lambda run: forecast(1.25)))
    text = " ".join(page.text.split())
    assert "Median error of the step time 20 % (before calibration: 20 %)" in text
    assert "Of 1 trial that ran out of memory, 1 was predicted to; of 2 that ran, 1 was" in text
    rows = page.source.split('id="forecast"')[1].split("</table>")[0].count("<tr>")
    assert rows == 1 + 3
    assert "stacks" in page.all("figure", "data-draw")
    assert "inaccurate here" not in text


def test_a_simulated_run_says_so_and_is_not_to_be_trained_with(journal):
    book = journal()
    for trial in range(3):
        book.run_one(trial, {"tp": trial}, "ok", 5.0 + trial)
    page = Page(write_report(book.directory))
    assert "(simulated)" in page.source.split("</title>")[0]
    assert "No process ran" in page.text and "Train with it" not in page.text
    assert "Trial 2 is the best of 3 measured configurations" in page.text
    lines = (book.directory / "journal.jsonl").read_text().replace('"simulate"', '"local"')
    records = [json.loads(line) for line in lines.splitlines()]
    as_version_1_of(book.directory, records)
    page = Page(write_report(book.directory))
    assert "No process ran" not in page.text and "Train with it" in page.text


def as_version_1_of(folder: Path, records: list[dict[str, Any]]) -> None:
    """Write a journal without checksums, as version 1 did."""
    for record in records:
        record["v"] = 1
        record.pop("after", None)
        record.pop("crc", None)
    (folder / "journal.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))


def test_the_record_that_figures_are_drawn_from_cannot_end_its_script():
    text = embedded({"a</script>": ["<!--", "\u202e", float("nan"), float("inf"), 1 / 3]})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a</script>": ["<!--", r"\u202e", None, None, 0.333333]}


def test_a_model_that_is_far_off_is_not_to_be_trusted(priced):
    assert "inaccurate here" in Page(write_report(priced, validate=lambda run: forecast(1.4))).text


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


def test_a_run_without_prices_has_no_word_of_the_model(priced):
    write_report(priced, validate=lambda run: forecast())
    told: list[str] = []
    page = Page(write_report(priced, validate=lambda run: None, tell=told.append))
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


def test_the_page_of_many_trials_lists_the_best_and_the_latest_of_them(big_run, monkeypatch):
    monkeypatch.setattr(tables, "LISTED", 20)
    run = read_run(big_run)
    listed = [trial.number for trial in tables.listed(run)]
    best = [trial.number for trial in ranked_trials(run)]
    assert len(listed) == 20 and listed == sorted(listed)
    assert set(best[:10]) <= set(listed) and 99 in listed
    page = Page(write_report(big_run, [s for s in SECTIONS if s.draw.__name__ == "_trials"]))
    rows = [row for row in page.all("tr", "id") if row.startswith("trial-")]
    assert rows == [f"trial-{number}" for number in listed]
    assert "results.csv has the other 80, too" in page.text


def test_a_file_where_the_report_should_be_is_named_with_the_remedy(build: Any) -> None:
    run = build(count=3)
    (run / "report").write_text("mine")
    with pytest.raises(FileExistsError, match=r"report is a file, .*: move it away"):
        write_report(run)
    assert (run / "report").read_text() == "mine"
