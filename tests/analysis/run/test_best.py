"""``best.yaml``: what was written is read back, and what is none is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.run.best import Best, write_best
from support.run_book import RunBook
from trainer.plan.limits import ConfigError


@pytest.fixture
def book(tmp_path: Path) -> RunBook:
    """A run of two successes, the second the better one, with a space file."""
    book = RunBook(tmp_path / "run")
    book.run_one(0, {"tp": 2, "mbs": 1}, "ok", 5.0)
    book.run_one(1, {"tp": 4, "mbs": 1}, "ok", 9.0)
    book.read().folder.space_file.touch()
    book.read().folder.report.mkdir()
    return book


def test_the_best_trials_configuration_and_command_are_written(book: RunBook) -> None:
    path = book.read().folder.report / "best.yaml"
    assert write_best(book.read(), path) == ""
    best = Best.read(path)
    assert best.train is not None and best.train["tp"] == 4
    assert (best.num_nodes, best.ranks_per_node, best.command) == (1, 8, ())
    assert Best.parameters_in(path) == {"tp": 4, "mbs": 1}


def test_a_command_gets_the_folder_of_the_training_in_place_of_its_trials(book: RunBook) -> None:
    folder = book.read().folder
    argv = ["train.sh", "--log", f"{folder.trial(1)}/log"]
    spec = {"argv": argv, "num_nodes": 2, "ranks_per_node": 4, "env": {"A": "1"}}
    (folder.trial(1) / "trial.json").write_text(json.dumps(spec))
    path = folder.report / "best.yaml"
    assert write_best(book.read(), path) == ""
    best = Best.read(path)
    assert best.command == ("train.sh", "--log", f"{Best.TRIAL_DIR}/log")
    assert (best.train, best.env, best.num_nodes) == (None, {"A": "1"}, 2)


def test_an_earlier_best_does_not_outlive_a_reason_not_to_write_one(book: RunBook) -> None:
    folder = book.read().folder
    path = folder.report / "best.yaml"
    write_best(book.read(), path)
    (folder.trial(1) / "trial.json").unlink()
    assert "the files of trial 1" in write_best(book.read(), path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "found an empty file"),
        ("version: 1", "not a best.yaml"),
        ("meshtune_best: 1\nnum_nodes: 1\nranks_per_node: 1\n", "exactly one of: train, command"),
        ("meshtune_best: 1\ncommand: [x]\nnum_nodes: 1000000000000\n", "1000000 or less"),
        ("meshtune_best: 1\ncommand: [x]\n", "key .num_nodes. is missing"),
        (
            "meshtune_best: 1\ntrain: {tp: none}\n",
            "key .train.tp.: found .none., accepted a whole number",
        ),
        ("{: [", "not YAML"),
    ],
)
def test_a_file_that_is_no_best_yaml_is_a_clear_error(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "best.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint) as caught:
        Best.read(path)
    assert str(path) in str(caught.value)


def test_parameters_are_those_of_a_best_yaml_in_its_runs_folder(
    book: RunBook, tmp_path: Path
) -> None:
    path = book.read().folder.report / "best.yaml"
    write_best(book.read(), path)
    away = tmp_path / "best.yaml"
    away.write_text(path.read_text())
    with pytest.raises(ConfigError, match="leave it in its run's report folder"):
        Best.parameters_in(away)
    assert Best.parameters_in(Path("llama_8b_dgx_h100")) is None
