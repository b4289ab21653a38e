"""``meshtune train best.yaml``, after a search of real trials."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from analysis.report.page import write_report
from search_spaces.load import SHIPPED
from workflows.cli.main import main

SPACE = """
version: 1
name: own
cluster: {{name: toy, gpus_per_node: 2, memory_gib: 1, peak_fp32_tflops: 0.1}}
trainer:
  command: [{python}, -c, {code}, "{{mbs}}", "{{trial_dir}}/out-{{mbs}}"]
parameters: {{mbs: [1, 2, 3]}}
objective: {{maximize: speed}}
budget: {{trials: 3}}
finalists: false
"""
CODE = (
    "import os, sys; open(sys.argv[2], 'a').close();"
    "print('MESHTUNE_RESULT {\"speed\": ' + sys.argv[1] + '}')"
)


def test_the_best_of_an_own_trainer_trains_in_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    space = tmp_path / "own.yaml"
    space.write_text(SPACE.format(python=sys.executable, code=yaml.safe_dump(CODE).strip()))
    assert main(["search", str(space), "--run-dir", str(tmp_path / "run")]) == 0
    best = tmp_path / "run" / "report" / "best.yaml"
    out = tmp_path / "again"
    assert main(["train", str(best), "--out", str(out)]) == 0
    assert (out / "out-3").exists()
    assert "speed" in capsys.readouterr().out


def test_training_with_the_built_in_trainers_best(tmp_path: Path) -> None:
    run = tmp_path / "run"
    meshtune = [sys.executable, "-m", "workflows.cli.main"]
    space = tmp_path / "roomy.yaml"  # its best is not at the edge of memory, where luck decides
    text = (SHIPPED / "tiny_cpu.yaml").read_text()
    space.write_text(re.sub(r"device_memory_bytes: \d+", "device_memory_bytes: 1000000000", text))
    command = [*meshtune, "search", str(space), "--trials", "2", "--run-dir", str(run)]
    subprocess.run([*command, "--launcher", "local"], check=True, timeout=240, capture_output=True)
    write_report(run)
    train = [*meshtune, "train", str(run / "report" / "best.yaml"), "--launcher", "local"]
    done = subprocess.run(
        [*train, "--steps", "4", "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "tokens_per_second" in done.stdout
    assert (tmp_path / "out" / "result.json").exists()


def test_a_file_that_is_no_best_yaml_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "best.yaml"
    path.write_text("version: 1")
    assert main(["train", str(path)]) == 2
    assert "not a best.yaml" in capsys.readouterr().err
