"""``meshtune try``: one trial, and what was done and read for it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from search_spaces import load_space
from support.waiting import wait_for
from workflows.cli.main import main

CONFIG = {"tp": 1, "mbs": 2, "gas": 2}

CODE = """
import os, sys
if os.environ["RANK"] == "0":
    for i in range(1, 8):
        time = f"{1 + i / 100:.2f}"
        print(f" iteration {i:8d}/ 7 | elapsed time per iteration (ms): {time} | lm loss: 9.1 |")
    print("[Rank 0] memory (MB) | max allocated: 512.0 | reserved: 600.0")
    sys.exit("no luck") if sys.argv[2] == "4" else None
"""


WAITING = """
import pathlib, time
pathlib.Path("../../../up").touch()
time.sleep(600)
"""


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(CODE)
    content = {
        "version": 1,
        "model": "tiny",
        "cluster": {"name": "toy", "gpus_per_node": 2, "memory_gib": 1, "peak_fp32_tflops": 9},
        "trainer": {
            "command": [sys.executable, str(tmp_path / "train.py"), "{tp}", "{mbs}"],
            "files": {"conf.json": {"set": {"gas": "{gas}"}}},
            "result": {"format": "megatron-lm"},
            "env": {"API_KEY": "hunter2"},
        },
        "parameters": {"tp": [1, 2], "mbs": [1, 2, 4], "gas": 2, "flag": [True, False]},
        "objective": {"minimize": "step_time_s.median"},
    }
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return file


def test_it_shows_what_was_done_and_what_was_read_from_where(
    space: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["try", str(space), "--config", "mbs=2", "tp=1"]) == 0
    shown = capsys.readouterr().out
    for words in (
        "tp=1 mbs=2",
        "train.py 1 2\n",
        "config.json, trial.json, conf.json",
        "API_KEY of trainer.env",
        "ended         ok",
        "read          step_time_s = 0.00105 s, of 5 of 7 lines in stdout.log;",
        "elapsed time per iteration (ms): 1.07",
        "read          peak_memory_bytes = 0.5 GiB, of 1 of 1 lines",
        "objective     step_time_s.median = 0.00105 s",
        "does not depend on flag",
        "cost model",
    ):
        assert words in shown, shown
    assert "hunter2" not in shown


def test_a_trial_that_fails_shows_its_last_words(
    space: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["try", str(space), "--config", "mbs=4"]) == 1
    shown = capsys.readouterr().out
    assert "ended         crash" in shown
    assert "no luck" in shown.partition("last lines of standard error")[2]


def test_a_trial_that_ctrl_c_ends_says_so_in_the_exit_code(space: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAITING)
    command = [sys.executable, "-m", "workflows.cli.main", "try", str(space)]
    tried = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    wait_for((tmp_path / "up").exists, "the trial runs")
    tried.send_signal(signal.SIGINT)
    said, _ = tried.communicate(timeout=120)
    assert "ended         cancelled" in said
    assert tried.returncode == 130


def test_without_a_number_the_output_is_shown_that_no_pattern_matches(
    space: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patterns = "result: {patterns: {step_time_s: 'took (.*)'}}"
    space.write_text(space.read_text().replace("result:\n    format: megatron-lm", patterns))
    assert main(["try", str(space), "--config", "mbs=2"]) == 1
    shown = capsys.readouterr().out
    assert "no pattern matched (step_time_s)" in shown
    assert "elapsed time per iteration (ms): 1.07" in shown.partition("of standard output:")[2]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("mbs=3", "mbs: found 3, accepted 1, 2, 4"),
        ("mbs", "accepted NAME=VALUE"),
        ("speed=3", "NAME being one of tp, mbs, gas, flag"),
    ],
)
def test_wrong_values_are_told(
    space: Path, capsys: pytest.CaptureFixture[str], given: str, told: str
) -> None:
    assert main(["try", str(space), "--config", given]) == 2
    assert told in capsys.readouterr().err


def test_a_script_is_found_beside_the_space_and_told_by_check_where_a_trial_would_not_find_it(
    space: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    space.write_text(space.read_text().replace(str(space.parent / "train.py"), "train.py"))
    assert f"{space.parent}/train.py" in load_space(space).command({**CONFIG, "flag": True}, "/t")
    assert main(["check", str(space)]) == 0
    assert "will not find" not in capsys.readouterr().out
    elsewhere = space.parent / "elsewhere"
    elsewhere.mkdir()
    (space.parent / "train.py").rename(elsewhere / "train.py")
    monkeypatch.chdir(elsewhere)
    assert main(["check", str(space)]) == 0
    assert "will not find train.py: write its whole path" in capsys.readouterr().out
