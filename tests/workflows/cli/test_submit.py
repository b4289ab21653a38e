"""``meshtune submit``, up to what sbatch says."""

from __future__ import annotations

from pathlib import Path

import pytest

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
