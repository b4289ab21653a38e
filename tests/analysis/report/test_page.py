"""The page: complete, self-contained, escaped; and it says so when there is little to show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.report import tables
from analysis.report.drawing import FIGURES
from analysis.report.figures import embedded
from analysis.report.outcomes import ranked_trials
from analysis.report.page import content_of, write_report
from analysis.report.section import figures_named
from analysis.report.sections import SECTIONS
from analysis.run.best import Best
from analysis.run.fold import read_run
from analysis.run.lines import RunError
from support.page import Page
from support.run_book import resealed

pytestmark = pytest.mark.usefixtures("quick_forests")

HOSTILE = "<script>alert(1)</script>\"' onload=x & $\\frac{ {{ 7*7 }} \x1b[2J\u202e\ud800"


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
    content = content_of(read_run(big))
    there = [name for name, section in FIGURES.items() if section.condition(content)]
    assert {one.draw for name in there for one in figures_named(name, content)} == drawn
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


def test_a_simulated_run_says_so_and_is_not_to_be_trained_with(journal):
    book = journal()
    for trial in range(3):
        book.run_one(trial, {"tp": trial}, "ok", 5.0 + trial)
    page = Page(write_report(book.directory))
    assert "(simulated)" in page.source.split("</title>")[0]
    assert "No process ran" in page.text and "Train with it" not in page.text
    assert "Trial 2 is the best of 3 measured configurations" in page.text
    resealed(book.directory / "journal.jsonl", '"simulate"', '"local"')
    page = Page(write_report(book.directory))
    assert "No process ran" not in page.text and "Train with it" in page.text


def test_the_record_that_figures_are_drawn_from_cannot_end_its_script():
    text = embedded({"a</script>": ["<!--", "\u202e", float("nan"), float("inf"), 1 / 3]})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a</script>": ["<!--", r"\u202e", None, None, 0.333333]}


def test_the_page_of_many_trials_lists_the_best_and_the_latest_of_them(big_run, monkeypatch):
    monkeypatch.setattr(tables, "LISTED", 20)
    run = read_run(big_run)
    listed = [trial.number for trial in tables.listed(run)]
    best = [trial.number for trial in ranked_trials(run)]
    assert len(listed) == 20 and listed == sorted(listed)
    assert set(best[:10]) <= set(listed) and 99 in listed
    page = Page(write_report(big_run, SECTIONS[-1:]))
    rows = [row for row in page.all("tr", "id") if row.startswith("trial-")]
    assert rows == [f"trial-{number}" for number in listed]
    assert "results.csv has the other 80, too" in page.text


def test_a_file_where_the_report_should_be_is_named_with_the_remedy(build: Any) -> None:
    run = build(count=3)
    (run / "report").write_text("mine")
    with pytest.raises(FileExistsError, match=r"report is a file, .*: move it away"):
        write_report(run)
    assert (run / "report").read_text() == "mine"
