"""A run in MLflow and in Weights & Biases, where they are installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from support.run_book import T0, RunBook
from workflows.cli.main import main


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunBook:
    monkeypatch.chdir(tmp_path)
    book = RunBook(tmp_path / "run")
    book.run_one(1, {"tp": 1, "note": "a", "vpp": None}, "ok", 2.5)
    book.run_one(2, {"tp": 4, "note": "a", "vpp": 2}, "oom", None, "out of memory")
    return book


def test_a_trial_is_a_run_of_mlflows_and_what_is_new_is_added_later(
    book: RunBook, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer ones advise a database
    assert main(["to-mlflow", "run", "store"]) == 0
    book.run_one(3, {"tp": 2, "note": "b", "vpp": None}, "ok", 3.5)
    book.close()
    assert main(["to-mlflow", "run", "store"]) == 0
    assert "1 trial added to the experiment run, 2 were there already" in capsys.readouterr().out
    client = mlflow.MlflowClient(tracking_uri="store")
    experiment = client.get_experiment_by_name("run")
    runs = {
        r.data.tags["meshtune.trial"]: r for r in client.search_runs([experiment.experiment_id])
    }
    assert sorted(runs) == ["1", "2", "3"]
    assert runs["3"].data.params == {"tp": "2", "note": "b"}
    assert runs["3"].data.metrics["speed"] == 3.5 and runs["3"].data.metrics["node_hours"] > 0
    assert runs["3"].info.end_time - runs["3"].info.start_time == 63_000
    assert runs["2"].info.status == "FAILED" and "speed" not in runs["2"].data.metrics
    assert runs["2"].data.tags["meshtune.message"] == "out of memory"
    monkeypatch.setattr("support.run_book.T0", T0 + 60)
    RunBook(Path("other")).close()
    assert main(["to-mlflow", "other", "store", "--name", "run"]) == 2
    assert "is of another run; choose another --name" in capsys.readouterr().err


def test_what_an_interrupted_copy_has_begun_in_mlflow_is_completed(
    book: RunBook, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    book.close()
    store = str(Path("store").absolute())
    real = mlflow.MlflowClient.set_terminated

    def interrupted(client: object, run_id: str, *rest: object) -> None:
        monkeypatch.setattr(mlflow.MlflowClient, "set_terminated", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(mlflow.MlflowClient, "set_terminated", interrupted)
    assert main(["to-mlflow", "run", store]) == 130
    assert main(["to-mlflow", "run", store]) == 0
    assert "2 trials added to the experiment run" in capsys.readouterr().out
    client = mlflow.MlflowClient(tracking_uri=store)
    runs = client.search_runs([client.get_experiment_by_name("run").experiment_id])
    ends = {r.data.tags["meshtune.trial"]: r.info.status for r in runs}
    assert len(runs) == 2 and ends == {"1": "FINISHED", "2": "FAILED"}
    assert [r.data.metrics["speed"] for r in runs if r.info.status == "FINISHED"] == [2.5]


def test_a_trial_is_a_run_of_wandbs_kept_on_disk_where_it_is_offline(
    book: RunBook, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="pip install wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    book.close()
    assert main(["to-wandb", "run", "--project", "mine"]) == 0
    assert "2 trials written to the project mine, group run" in capsys.readouterr().out
    kept = {file.name.split("-")[-1]: file for file in Path("wandb").glob("offline-run-*/*.wandb")}
    assert sorted(kept) == ["1.wandb", "2.wandb"]
    told = kept["2.wandb"].read_bytes()
    for words in (b"out of memory", b"trial 2", b"node_hours", json.dumps("oom").encode()):
        assert words in told
    # Written again, a history would grow; summary and configuration are replaced.
    assert main(["to-wandb", "run", "--project", "mine"]) == 0
    for file in Path("wandb").glob("offline-run-*/*.wandb"):
        assert b"duration_s" in file.read_bytes() and b"_step" not in file.read_bytes()


@pytest.mark.parametrize(
    ("module", "command"),
    [("mlflow", ["to-mlflow", "run", "store"]), ("wandb", ["to-wandb", "run"])],
)
def test_without_the_tracker_the_error_names_the_remedy(
    book: RunBook,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    command: list[str],
) -> None:
    book.close()
    monkeypatch.setitem(sys.modules, module, None)
    assert main(command) == 2
    error = capsys.readouterr().err
    assert f"{module} is not installed" in error and "meshtune[trackers]" in error


def test_names_that_mlflow_does_not_take_are_changed(
    book: RunBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    many = {f"flag{n}": n for n in range(150)}
    book.run_one(3, {"--tp=": 2, "größe": 1, **many}, "ok", 3.5)
    book.close()
    store = str(Path("store").absolute())
    assert main(["to-mlflow", "run", store]) == 0
    client = mlflow.MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("run").experiment_id
    (told,) = client.search_runs([experiment], "tags.`meshtune.trial` = '3'")
    assert told.data.params["--tp_"] == "2" and told.data.params["gr__e"] == "1"
    assert len(told.data.params) == 152


def test_a_server_that_does_not_answer_is_no_mistake_of_the_callers(
    book: RunBook, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    book.close()
    assert main(["to-mlflow", "run", "http://me:hush@127.0.0.1:9"]) == 1
    error = capsys.readouterr().err
    assert "http://***@127.0.0.1:9" in error and "repeat the command" in error
    assert "hush" not in error


def test_without_a_login_the_error_of_wandbs_names_the_remedy(
    book: RunBook, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="pip install wandb")
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("NETRC", "none")
    book.close()
    assert main(["to-wandb", "run"]) == 1
    error = capsys.readouterr().err
    assert "wandb login" in error and "WANDB_MODE=offline" in error


def test_a_database_without_what_mlflow_needs_for_it_names_the_remedy(
    book: RunBook, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    book.close()
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    assert main(["to-mlflow", "run", "sqlite:///mlflow.db"]) == 2
    assert "pip install sqlalchemy alembic" in capsys.readouterr().err
    assert not Path("mlflow.db").exists()
