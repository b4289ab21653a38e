"""Trials of DeepHyper's and Optuna's own searches, as a run."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path

import pytest

from analysis.imported.results import read_results
from analysis.sweeps.record import TableError
from support.imported_results import DEEPHYPER, run_optuna, write_deephyper


def test_a_results_file_of_deephyper_is_a_run(tmp_path: Path) -> None:
    run = read_results(str(write_deephyper(tmp_path)))
    assert list(run.trials) == [*range(11)] and run.maximize and run.launcher == "DeepHyper"
    first, failed, own = run.trials[0], run.trials[7], run.trials[8]
    assert first.config == {"lr": 0.0254, "note": "b", "tp": 3} and first.objective == 4.4746
    assert first.result["loss"] == 0.3 and first.elapsed_s == pytest.approx(0.001)
    assert (failed.kind, failed.objective, failed.config["note"]) == ("oom", None, None)
    assert (own.kind, own.message) == ("crash", "my_own_reason")
    assert run.best is run.trials[10] and run.last_t == 68.465
    assert "when trials ran" not in run.not_said


def test_results_without_times_keep_their_order_and_say_so(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text("p:tp,objective_0,objective_1\n1,2.0,3.0\n2,F,F\n4,1.0,4.0\n")
    run = read_results(str(path))
    assert [t.ended_t for t in run.trials.values()] == [0.0, 1.0, 2.0]
    assert "when trials ran" in run.not_said and not run.opened_t
    assert [t.number for t in run.front()] == [0, 2]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (DEEPHYPER.replace("p:", "q:"), "not a results.csv"),
        (DEEPHYPER.replace("8.9745", "fast"), ":3: objective is 'fast'"),
        (DEEPHYPER.replace("0.293", "soon"), ":3: m:timestamp_gather is 'soon'"),
    ],
)
def test_what_is_no_such_file_is_a_clear_error(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "results.csv"
    path.write_text(text)
    with pytest.raises(TableError, match=complaint):
        read_results(str(path))


def test_a_space_in_place_of_its_run_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("version: 1\ntrainer: {command: [a, b, c]}\n")
    with pytest.raises(TableError, match=r"not a results\.csv, nor a run's folder"):
        read_results(str(path))


@pytest.mark.parametrize("text", ["", "nan"])
@pytest.mark.parametrize("time", ["0.292", "0.293"])
def test_a_trial_without_its_time_leaves_the_order_alone(
    tmp_path: Path, text: str, time: str
) -> None:
    path = tmp_path / "results.csv"
    path.write_text(DEEPHYPER.replace(f",{time}", f",{text}"))
    assert "when trials ran" in read_results(str(path)).not_said


def test_the_first_whole_pair_of_times_counts(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    columns = ("start", "submit", "gather", "end")
    times = ",".join(f"m:timestamp_{name}" for name in columns)
    path.write_text(f"p:tp,objective,{times}\n1,2.0,5,1,9,7\n2,3.0,,2,9,8\n")
    run = read_results(str(path))
    assert [(t.proposed_t, t.ended_t) for t in run.trials.values()] == [(1, 9), (2, 9)]


def test_a_study_of_optuna_is_a_run_and_its_storage_stays_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    url = run_optuna(tmp_path)
    before = (tmp_path / "optuna.db").read_bytes()
    run = read_results(url)
    assert (tmp_path / "optuna.db").read_bytes() == before
    assert len(run.trials) == 24 and not run.maximize and run.space == "mine"
    kinds = [run.trials[n].kind for n in (0, 5, 7)]
    assert kinds == ["ok", "crash", "ok"] and run.trials[7].stopped_early
    assert not run.trials[0].stopped_early and run.trials[0].result["peak_gib"] > 0
    assert run.best is not None and run.best.config["tp"] == 8
    assert math.isfinite(run.last_t) and run.trials[0].elapsed_s >= 0


def test_a_storage_that_is_none_is_a_clear_error_and_is_not_made(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    with pytest.raises(TableError, match="there is no file"):
        read_results(f"sqlite:///{tmp_path}/no.db")
    assert not (tmp_path / "no.db").exists()
    (tmp_path / "empty.db").touch()
    with pytest.raises(TableError, match="no storage of Optuna's"):
        read_results(f"sqlite:///{tmp_path}/empty.db")
    run_optuna(tmp_path, "one", trials=1)
    url = run_optuna(tmp_path, "other", trials=1)
    with pytest.raises(TableError, match=r"found 2 studies, accepted one; .* one, other"):
        read_results(url)
    assert read_results(url, "other").space == "other"


@pytest.mark.parametrize("columns", ["id", "schema_version, library_version"])
def test_a_database_of_others_is_refused_and_stays_as_it_is(tmp_path: Path, columns: str) -> None:
    pytest.importorskip("optuna")
    file = tmp_path / "others.db"
    with sqlite3.connect(file) as others:
        others.execute("CREATE TABLE studies (id)")
        others.execute(f"CREATE TABLE version_info ({columns})")
        others.execute("CREATE TABLE alembic_version (version_num)")
    others.close()
    before = file.read_bytes()
    with pytest.raises(TableError, match="no storage of Optuna's"):
        read_results(f"sqlite:///{file}")
    assert file.read_bytes() == before


def test_a_damaged_or_locked_storage_is_a_clear_error(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    url = run_optuna(tmp_path, trials=2)
    holder = sqlite3.connect(tmp_path / "optuna.db")
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(TableError, match=r"locked; try again when nothing writes to it"):
        read_results(f"{url}?timeout=0.1")
    holder.rollback()
    holder.execute("UPDATE trial_params SET distribution_json = '{'")
    holder.commit()
    holder.close()
    with pytest.raises(TableError, match=r"optuna.db: .*; try again"):
        read_results(url)
    (tmp_path / "torn.db").write_bytes((tmp_path / "optuna.db").read_bytes()[:5000])
    with pytest.raises(TableError, match=r"torn.db: .*malformed"):
        read_results(f"sqlite:///{tmp_path}/torn.db")


@pytest.mark.filterwarnings("ignore:Choices for a categorical distribution")
def test_choices_that_are_no_plain_values_are_told_as_text(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    url = run_optuna(tmp_path, trials=1)
    study = optuna.load_study(study_name="mine", storage=url)
    choices = optuna.distributions.CategoricalDistribution([(1, 2), (2, 1)])
    pruned = optuna.trial.create_trial(
        state=optuna.trial.TrialState.PRUNED, params={"grid": (2, 1)},
        distributions={"grid": choices}, intermediate_values={1: 0.5}, value=0.5,
    )  # fmt: skip
    study.add_trial(pruned)
    with sqlite3.connect(tmp_path / "optuna.db") as storage:
        storage.execute("UPDATE trials SET datetime_start = NULL WHERE number = 1")
    storage.close()
    run = read_results(url)
    assert run.trials[1].config["grid"] == str([2, 1])
    assert "when trials ran" in run.not_said
    assert run.trials[1].stopped_early and not run.trials[0].stopped_early
