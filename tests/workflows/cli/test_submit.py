"""``meshtune submit``, up to what sbatch says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from search_spaces import load_space
from slurm import BatchJob
from workflows.cli.main import main
from workflows.submission import time_limit

SPACE = """
version: 1
cluster: {name: toy, gpus_per_node: 2, memory_gib: 1, peak_fp32_tflops: 0.1}
trainer: {command: [train, "{mbs}"]}
parameters: {mbs: [1, 2, 3]}
objective: {maximize: speed}
budget: {trials: 3}
"""


@pytest.mark.parametrize(
    ("given", "sbatch"),
    [("90m", "1:30:00"), ("6h", "6:00:00"), ("2d", "48:00:00"), ("1.5h", "1:30:00"),
     ("30", "30"), ("1-12", "1-12"), ("02:00:00", "02:00:00"), ("0h", "0h"), ("soon", "soon")],
)  # fmt: skip
def test_a_time_limit_is_written_as_in_spaces_or_as_sbatch_takes_it(
    given: str, sbatch: str
) -> None:
    assert time_limit(given) == sbatch


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command of a submission that sbatch refuses."""
    for name, text in {
        "sbatch": "echo 'sbatch: error: invalid partition specified: gpuu' >&2; exit 1",
        "squeue": "exit 0",
    }.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(SPACE)
    return ["submit", "mine.yaml", "--nodes", "1", "--time", "1h", "--partition", "gpuu"]


def test_a_submission_that_sbatch_refuses_leaves_nothing(
    refused: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(refused) == 1
    assert "invalid partition specified" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_an_environment_that_cannot_be_sent_is_refused_before_anything_is_written(
    refused: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("here.yaml").write_text(
        f"source: a test\nenvironment: {{archive: {Path.cwd()}/no.tar, folder: /local/e}}\n"
    )
    for further in ([], ["--dry-run"]):
        assert main([*refused, "--site", "here.yaml", *further]) == 2
        said = capsys.readouterr().err
        assert "no.tar: there is no such file; make it with `conda-pack" in said
    assert not Path("runs").exists()


def test_a_second_submission_that_is_refused_leaves_the_first_as_it_was(
    refused: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path("runs/mine")
    run.mkdir(parents=True)
    (run / "search.sbatch").write_text("the first")
    (run / "space.yaml").write_text("of the first")
    assert main(refused) == 1
    assert (run / "search.sbatch").read_text() == "the first"
    assert (run / "space.yaml").read_text() == "of the first"
    assert sorted(path.name for path in run.iterdir()) == ["search.sbatch", "space.yaml"]


def test_a_written_script_makes_its_run_and_nothing_is_submitted(
    refused: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*refused, "--write", "search.sbatch"]) == 0
    assert (
        f"`sbatch search.sbatch` starts the search in {Path.cwd()}/runs/mine"
        in capsys.readouterr().out
    )
    text = Path("search.sbatch").read_text()
    log = re.search(r"^#SBATCH --output=(.*)/slurm-%j.log$", text, re.MULTILINE)
    assert log is not None and Path(log[1]).is_dir()  # or the job would end without a word
    assert Path("runs/mine/search.sbatch").read_text() == text
    assert load_space("runs/mine/space.yaml").name == "mine"
    space = re.search(r" search (\S+) --run-dir ", text)
    assert space is not None and Path(space[1]).is_file()


def test_a_script_is_written_where_there_is_no_slurm(refused: list[str], tmp_path: Path) -> None:
    (tmp_path / "bin" / "squeue").write_text("#!/bin/sh\nexit 1\n")
    assert main([*refused, "--write", "search.sbatch"]) == 0
    assert Path("search.sbatch").read_text() == Path("runs/mine/search.sbatch").read_text()


def test_a_job_of_a_written_script_is_the_runs_own(refused: list[str], tmp_path: Path) -> None:
    assert main([*refused, "--write", "search.sbatch"]) == 0
    job = f"echo '71|PENDING|{tmp_path}/search.sbatch'; echo '72|RUNNING|/bin/other'"
    (tmp_path / "bin" / "squeue").write_text(f"#!/bin/sh\n{job}\n")
    assert BatchJob.of(Path("runs/mine")) == BatchJob("71", "pending")
    assert BatchJob.of(Path("runs/other")) is None
    assert main(refused) == 2


def test_a_file_that_is_no_batch_script_is_not_overwritten(
    refused: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("notes.txt").write_text("mine")
    assert main([*refused, "--write", "notes.txt"]) == 2
    assert "notes.txt: exists" in capsys.readouterr().err
    assert Path("notes.txt").read_text() == "mine" and not Path("runs").exists()


@pytest.mark.parametrize("time", ["10m", "00:20:00", "20", "21m"])
def test_a_job_in_which_no_trial_would_start_is_refused(
    refused: list[str], time: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused[refused.index("1h")] = time
    assert main([*refused, "--write", "search.sbatch"]) == 2
    said = capsys.readouterr().err
    assert f"--time {time}: no trial would start" in said and "ask for at least 22m" in said
    assert not Path("runs").exists()
    refused[refused.index(time)] = "22"
    assert main([*refused, "--write", "search.sbatch"]) == 0


def test_a_job_that_is_narrower_than_every_trial_is_refused(
    refused: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    space = Path(refused[1])
    space.write_text(space.read_text().replace("{mbs: [1", "{num_nodes: [2, 4], mbs: [1"))
    assert main([*refused, "--write", "search.sbatch"]) == 2
    said = capsys.readouterr().err
    assert "--nodes 1: no trial would start, as the narrowest takes 2 nodes" in said
    assert not Path("runs").exists()
