"""DeepHyper's and Optuna's own results: reported, compared, replayed."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import pytest

from analysis.imported.results import read_results
from support.imported_results import run_optuna, write_deephyper
from support.run_book import RunBook
from workflows.cli.main import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_page_of_deephypers_trials_says_what_is_not_known(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_deephyper(folder)
    assert main(["report", "results.csv"]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page == Path("results-report/index.html")
    assert [file.name for file in page.parent.iterdir()] == ["index.html"]
    text = page.read_text()
    assert "lacks: the model and the cluster; nodes and node-hours; logs" in text
    for figure in ("history", "effects", "parallel", "heat"):
        assert f'data-draw="{figure}"' in text
    assert 'data-draw="nodes"' not in text and "1970" not in text and "meshtune train" not in text
    assert "<option selected>trials</option><option>time</option></select>" in text


def test_a_page_of_somebody_elses_is_not_replaced(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_deephyper(folder)
    Path("site").mkdir()
    Path("site/index.html").write_text("<title>my home page</title>")
    assert main(["report", "results.csv", "--out", "site"]) == 2
    error = capsys.readouterr().err
    assert "site/index.html" in error and "choose another --out" in error
    assert Path("site/index.html").read_text() == "<title>my home page</title>"
    for _ in range(2):  # one of meshtune's is
        assert main(["report", "results.csv", "--out", "here"]) == 0


@pytest.mark.parametrize("command", ["report", "replay"])
@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("s.db", "s.db: an SQLite database; accepted by its URL, sqlite:///s.db"),
        ("journal.log", "journal.log:1: found JSON, .* `optuna.copy_study`"),
        ("none.csv", "none.csv: there is no such file"),
    ],
)
def test_a_file_of_optunas_that_is_no_table_names_the_way(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, file: str, said: str
) -> None:
    sqlite3.connect("s.db").execute("create table studies (study_id)")
    Path("journal.log").write_text('{"op_code": 0, "study_name": "j"}\n{"op_code": 4}\n')
    assert main([command, file]) == 2
    assert re.search(f"meshtune: {said}", capsys.readouterr().err)


def test_what_cannot_be_replayed_for_its_many_values_names_the_remedy(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"p:x{n}" for n in range(9)]
    rows = [",".join([*(str(row + n / 16) for n in range(9)), str(row)]) for row in range(200)]
    Path("results.csv").write_text("\n".join([",".join([*names, "objective"]), *rows]))
    assert main(["replay", "results.csv", "--policy", "random"]) == 2
    error = capsys.readouterr().err
    assert "results.csv: its 9 parameters have more than 2^62 combinations" in error
    assert "x0 200" in error and "round them" in error
    Path("results.csv").write_text(
        "\n".join(line.split(",", 1)[1] for line in Path("results.csv").read_text().splitlines())
    )
    assert main(["replay", "results.csv", "--policy", "random", "--seeds", "1"]) == 0


def test_results_of_two_folders_have_two_pages_whatever_their_clocks_count(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = "m:timestamp_submit,m:timestamp_gather"
    for name, start in (("a", 1.7e9), ("b", 1.7e12)):  # seconds, milliseconds
        (folder / name).mkdir()
        rows = [f"{tp},{tp}.5,{start + tp},{start + tp + 1}" for tp in (1, 2, 4)]
        (folder / name / "results.csv").write_text("\n".join([f"p:tp,objective,{times}", *rows]))
        assert main(["report", f"{name}/results.csv"]) == 0
        assert capsys.readouterr().out.strip() == f"{name}-report/index.html"


def test_a_run_is_compared_with_a_study_of_optunas(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    book = RunBook(folder / "run", {"minimize": "objective"})
    book.run_one(1, {"tp": 4, "micro-batch": 1}, "ok", 2.6)
    book.close()
    url = run_optuna(folder)
    assert main(["report", "run", url, "--study", "mine"]) == 0
    said = capsys.readouterr().out
    assert f"Optuna's study mine in {url}" in said and "different objectives" not in said
    assert main(["report", url, "--json", "--out", "here"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["page"] == "here/index.html" and told["trials"]["failed"] == {"crash": 3}


def test_the_results_of_a_run_are_its_own_report(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = RunBook(folder / "run")
    book.run_one(1, {"tp": 1}, "ok", 2.5)
    book.close()
    (folder / "run" / "results.csv").write_text("p:tp,objective\n1,2.5\n")
    assert main(["report", "run/results.csv"]) == 0
    assert capsys.readouterr().out.strip().endswith("run/report/index.html")
    assert main(["report", "run", "--out", "here"]) == 2
    said = capsys.readouterr().err
    assert "--out" in said and "`meshtune watch RUN` writes nothing" in said


@pytest.mark.parametrize("policy", ["random", "meshtune"])
def test_a_search_of_deephypers_or_optunas_is_replayed(
    folder: Path, capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    pytest.importorskip("optuna")
    for where in (str(write_deephyper(folder)), run_optuna(folder)):
        trials = [t for t in read_results(where).trials.values() if not t.stopped_early]
        count = len({tuple(trial.config.items()) for trial in trials})
        asked = ["--policy", policy, "--seeds", "1", "--json", "out.json"]
        assert main(["replay", where, *asked]) == 0
        (row,) = json.loads(Path("out.json").read_text())["landscapes"]
        assert row["configs"] == count and 1 <= row["trials_to_1pct"] <= count
    assert main(["replay", where, "--landscape", "tp"]) == 2
    assert "one landscape" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["report", "sqlite://me:hush@/x.db"],
        ["replay", "nosql://me:hush@host/x.db", "--policy", "random"],
        ["replay", "sqlite:///x.db?password=hush"],
    ],
)
def test_no_message_has_a_password(
    folder: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    pytest.importorskip("optuna")
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "://" in error and "***" in error and "hush" not in error
