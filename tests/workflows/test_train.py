"""``meshtune train best.yaml``, after a search of real trials."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from analysis import Best
from analysis.report.page import write_report
from foundation.documents import written_document
from search_spaces.shipped import SHIPPED
from workflows.cli.main import main
from workflows.train import Steps, changed

SPACE = """
version: 1
name: own
cluster: {{name: toy, gpus_per_node: 2, memory_gib: 1, peak_fp32_tflops: 0.1}}
trainer:
  command: [{python}, -c, {code}, "{{mbs}}", "{{trial_dir}}/out-{{mbs}}"]
  env: {{API_KEY: hunter2}}
parameters: {{mbs: [1, 2, 3]}}
objective: {{maximize: speed}}
budget: {{trials: 3}}
finalists: false
"""
CODE = (
    "import os, sys; open(sys.argv[2], 'a').close();"
    "sys.exit('RuntimeError: \\x1b]0;mine\\x07no luck') if sys.argv[1] == '1' else 0;"
    "print('MESHTUNE_STEP {\"step\": 1, \"speed\": ' + sys.argv[1] + '}');"
    "print('MESHTUNE_RESULT {\"speed\": ' + sys.argv[1] + '}')"
)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a search by an own trainer, and what was on the screen."""
    folder = tmp_path_factory.mktemp("searched")
    space = folder / "own.yaml"
    space.write_text(SPACE.format(python=sys.executable, code=yaml.safe_dump(CODE).strip()))
    command = [sys.executable, "-m", "workflows.cli.main", "search", str(space)]
    done = subprocess.run(
        [*command, "--launcher", "local", "--run-dir", str(folder / "run")],
        capture_output=True, text=True, timeout=240, check=True, umask=0o022,
    )  # fmt: skip
    return folder / "run", done.stdout + done.stderr


def test_the_best_of_an_own_trainer_trains_in_a_folder_of_its_own(
    searched: tuple[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    out = tmp_path / "again"
    assert main(["train", str(searched[0] / "report/best.yaml"), "--out", str(out)]) == 0
    assert (out / "out-3").exists()
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "step     1  speed 3" and said[2].split() == ["speed", "3"]
    check_private(out, {"command.txt"})


def test_nobody_else_can_read_a_trials_environment(searched: tuple[Path, str]) -> None:
    run, _ = searched
    check_private(run, {"space.yaml", "trial.json", "command.txt", "best.yaml"})
    assert (run / "journal.jsonl").stat().st_mode & 0o077 == 0


def check_private(folder: Path, names: set[str]) -> None:
    """The folder is its owner's alone, and so are the files in it that name the secret."""
    assert folder.stat().st_mode & 0o077 == 0
    files = [path for path in folder.rglob("*") if path.is_file()]
    holding = [path for path in files if b"hunter2" in path.read_bytes()]
    assert {path.name for path in holding} == names
    assert [path for path in holding if path.stat().st_mode & 0o077] == []


def test_a_trials_words_do_nothing_to_the_terminal(searched: tuple[Path, str]) -> None:
    assert r"\x1b]0;mine\x07no luck" in searched[1]
    assert "\x1b" not in searched[1]


def test_training_with_the_built_in_trainers_best(tmp_path: Path) -> None:
    run = tmp_path / "run"
    meshtune = [sys.executable, "-m", "workflows.cli.main"]
    space = tmp_path / "roomy.yaml"  # its best is not at the edge of memory, where luck decides
    text = (SHIPPED / "tiny_cpu.yaml").read_text()
    space.write_text(re.sub(r"device_memory_bytes: \d+", "device_memory_bytes: 1000000000", text))
    command = [*meshtune, "search", str(space), "--trials", "1", "--run-dir", str(run)]
    command += ["--launcher", "local", "--no-report"]
    subprocess.run(command, check=True, timeout=240, capture_output=True)
    write_report(run)
    train = [*meshtune, "train", str(run / "report" / "best.yaml"), "--launcher", "local"]
    train += ["--out", str(tmp_path / "out"), "--save", str(tmp_path / "checkpoints")]

    told: list[str] = []

    def trained(steps: int) -> str:
        done = subprocess.run(
            [*train, "--steps", str(steps)], capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr
        told.append(done.stderr)
        return done.stdout

    said = trained(4)
    assert "tokens_per_second" in said and "MESHTUNE" not in said
    (saved,) = (tmp_path / "checkpoints").iterdir()
    last = int(saved.name.removeprefix("step-"))
    assert f"step {last}/{last} loss " in said and f"saved {saved}\n" in said
    assert (tmp_path / "out" / "result.json").exists()
    steps = last - 3  # those that are not measured, and one that is
    assert f"step {last + steps}/{last + steps} loss " in trained(1)
    latest = tmp_path / f"checkpoints/step-{last + steps:08}"
    next(latest.glob("*.distcp")).write_bytes(b"")  # it went on, and its checkpoint is damaged
    assert f"step {last + 1}/{last + steps} loss " in trained(1)
    assert f"warning: {latest}: " in told[-1] and told[:-1] == ["", ""]


def test_a_training_begins_from_what_best_yaml_loads_and_goes_on_from_its_own(
    tmp_path: Path,
) -> None:
    model = {"num_layers": 1, "hidden_size": 8, "num_heads": 1, "vocab_size": 8, "seq_length": 8}
    path, saved = tmp_path / "best.yaml", tmp_path / "saved"

    def loaded(**train: str) -> str:
        content = {"model": model, "data": "x", **train}
        path.write_text(
            yaml.safe_dump(
                {"meshtune_best": 1, "num_nodes": 1, "ranks_per_node": 1, "train": content}
            )
        )
        found = changed(Best.read(path), save=saved).train
        assert found is not None and found["save"] == str(saved)
        return str(found["load"])

    assert loaded(load="/base") == "/base"
    (saved / "step-00000001.0123abcd.partial").mkdir(parents=True)
    assert loaded(load="/base") == "/base"
    assert loaded() == loaded(load="mine", save="mine") == str(saved)
    (saved / "step-00000001").mkdir()
    assert loaded(load="/base") == str(saved)


def test_a_dry_run_shows_the_command_of_more_ranks_than_this_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    best = {"meshtune_best": 1, "num_nodes": 100, "ranks_per_node": 8, "command": ["x", "--tp=8"]}
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(best))
    assert main(["train", str(tmp_path / "best.yaml")]) == 2
    assert "up to 800 ranks" in capsys.readouterr().err
    assert main(["train", str(tmp_path / "best.yaml"), "--dry-run"]) == 0
    assert "x --tp=8" in capsys.readouterr().out


def test_an_own_trainer_keeps_its_own_checkpoints(
    searched: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = str(searched[0] / "report/best.yaml")
    assert main(["train", best, "--save", str(tmp_path), "--dry-run"]) == 2
    assert "--save is for the built-in trainer" in capsys.readouterr().err
    assert main(["train", best, "--save-interval", "3", "--dry-run"]) == 2
    assert "--save-interval needs --save" in capsys.readouterr().err


def test_a_file_with_the_name_of_the_default_folder_stops_no_dry_run(
    searched: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").write_text("")
    best = str(searched[0] / "report" / "best.yaml")
    assert main(["train", best, "--dry-run"]) == 0


def test_a_file_that_is_no_best_yaml_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "best.yaml"
    path.write_text("version: 1")
    assert main(["train", str(path)]) == 2
    assert "not a best.yaml" in capsys.readouterr().err


def test_the_best_of_patterns_and_files_trains_with_them_and_for_so_many_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    code = (
        "import json; steps = json.load(open('conf/run.json'))['steps'];"
        "[print('speed so far', n) for n in range(steps)]"
    )
    content = yaml.safe_load(SPACE.format(python=sys.executable, code="x"))
    content["trainer"] = {
        "command": [sys.executable, "-c", code, "{mbs}", "3e-4", "{measured_steps}"],
        "files": {"conf/run.json": {"set": {"steps": "{measured_steps}"}}},
        "result": {"patterns": {"speed": r"speed so far (\d+)"}},
    }
    space, run = tmp_path / "own.yaml", tmp_path / "run"
    space.write_text(written_document({**content, "budget": {"trials": 1}}))
    assert main(["search", str(space), "--launcher", "local", "--run-dir", str(run)]) == 0
    best = str(run / "report/best.yaml")
    capsys.readouterr()
    assert main(["train", best, "--out", str(tmp_path / "out"), "--steps", "9"]) == 0
    assert re.search(r"^speed +4$", capsys.readouterr().out, re.MULTILINE)
    again = ["train", best, "--out", str(tmp_path / "out"), "--steps", "9", "--dry-run"]
    assert main(again) == 0
    assert capsys.readouterr().out.split()[-1] == "9"
    (run / "space.yaml").rename(run / "elsewhere.yaml")
    assert main(["train", best, "--out", str(tmp_path / "out"), "--steps", "9"]) == 2
    assert "--steps needs the space" in capsys.readouterr().err


def test_the_last_lines_of_a_training_are_shown_whatever_came_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show = Steps(tmp_path)
    lines = [f"line {number:<90}" for number in range(100_000)]
    (tmp_path / "stdout.log").write_text("\n".join([*lines, "the last words"]))
    (tmp_path / "stderr.log").write_text("a traceback\nwarning: a damaged checkpoint")
    show([])
    show([], ended=True)
    told = capsys.readouterr()
    assert told.out.splitlines() == [*lines, "the last words"]
    assert told.err == "warning: a damaged checkpoint\n"
