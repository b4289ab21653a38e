"""A run as a study of Optuna's."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from analysis.run.folder import RunFolder
from search_spaces import load_space
from support.run_book import T0, RunBook
from workflows.cli.main import main

SPACE = """
version: 1
cluster: {name: toy, gpus_per_node: 2, memory_gib: 1, peak_fp32_tflops: 0.1}
trainer: {command: [train, "{tp}"]}
parameters: {tp: [1, 2, 4], note: [a, b]}
objective: {maximize: speed}
budget: {trials: 9}
"""


def test_a_run_becomes_a_study_and_what_is_new_is_added_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    optuna = pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    book = RunBook(tmp_path / "run")
    Path("own.yaml").write_text(SPACE)
    RunFolder(book.directory).create(load_space("own.yaml"))
    book.run_one(1, {"tp": 1, "note": "a"}, "ok", 2.5)
    book.run_one(2, {"tp": 4, "note": "a"}, "oom", None, "out of memory")
    assert main(["to-optuna", "run", "sqlite:///x.db"]) == 0
    book.run_one(3, {"tp": 2, "note": "b"}, "ok", 3.5)
    book.close()
    assert main(["to-optuna", "run", "sqlite:///x.db"]) == 0
    said = capsys.readouterr()
    assert "1 trial added to the study run, 2 were there already" in said.out
    study = optuna.load_study(study_name="run", storage="sqlite:///x.db")
    assert [t.state.name for t in study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert study.best_trial.params == {"tp": 2, "note": "b"} and study.best_value == 3.5
    assert study.best_trial.user_attrs["trial"] == 3
    assert study.trials[1].user_attrs["message"] == "out of memory"
    assert study.metric_names == ["speed"]
    assert study.best_trial.duration.total_seconds() == pytest.approx(63)
    for wrong in ("sqlite:////no/such/x.db", "nosql:///x.db", "x.db"):
        assert main(["to-optuna", "run", wrong]) == 2
        error = capsys.readouterr().err
        assert wrong in error and len(error.splitlines()) <= 3


@pytest.mark.parametrize(("key", "later_s"), [("speed", 0.0), ("speed", 60.0), ("tokens", 0.0)])
def test_a_study_is_of_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    key: str, later_s: float,
) -> None:  # fmt: skip
    pytest.importorskip("optuna")
    (tmp_path / "own.yaml").write_text(SPACE)
    command = ["to-optuna", f"sqlite:///{tmp_path}/x.db", "--name", "study"]
    for name, objective, began in (("one", "speed", T0), ("other", key, T0 + later_s)):
        monkeypatch.setattr("support.run_book.T0", began)
        book = RunBook(tmp_path / name, {"maximize": objective})
        RunFolder(book.directory).create(load_space(tmp_path / "own.yaml"))
        book.run_one(1, {"tp": 1, "note": "a"}, "ok", 2.5)
        book.close()
        refused = name == "other" and (key != "speed" or later_s > 0)
        assert main([command[0], str(book.directory), *command[1:]]) == (2 if refused else 0)
        assert ("is of another run; choose another --name" in capsys.readouterr().err) == refused


def test_a_storage_that_is_locked_is_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(SPACE)
    book = RunBook(tmp_path / "run")
    RunFolder(book.directory).create(load_space("own.yaml"))
    book.run_one(1, {"tp": 1, "note": "a"}, "ok", 2.5)
    book.close()
    assert main(["to-optuna", "run", "sqlite:///x.db"]) == 0
    with closing(sqlite3.connect("x.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        assert main(["to-optuna", "run", "sqlite:///x.db?timeout=0.1"]) == 2
    error = capsys.readouterr().err
    assert "locked; try again when nothing else writes to it" in error
    assert len(error.splitlines()) == 1
