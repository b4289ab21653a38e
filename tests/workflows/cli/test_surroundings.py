"""What a command says where files, folders and ports are not as it needs them."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import cache_from_source
from pathlib import Path
from unittest.mock import Mock

import pytest

import meshtune
from analysis.run.lines import FIRST, Lines, sealed
from benchmarks.chaos.machines import can_trace
from foundation.files import explained
from foundation.writing import write_atomically
from slurm.log_file import LogFile
from support.small_disk import small_disk
from workflows.cli.main import main

INIT = ["--adapter", "torchtitan", "--cluster", "frontier"]
SPACE = """
version: 1
name: own
cluster: {name: toy, gpus_per_node: 2, memory_gib: 1, peak_fp32_tflops: 0.1}
trainer: {command: [no-such-trainer, "{tp}"]}
parameters: {num_nodes: [1], tp: [1, 2]}
objective: {maximize: speed}
budget: {trials: 2}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(here: Path) -> Iterator[Path]:
    """A search of two trials that has ended."""
    yield meshtune.search(
        "gpt_22b_frontier", launcher="simulate", trials=2, policy="random", run_dir=here / "run"
    ).directory


@pytest.mark.parametrize(
    "text", [".".join(["a"] * 3000) + " = 1", "a = " + "[" * 3000 + "]" * 3000]
)
def test_deep_toml_is_refused(here: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "deep.toml").write_text(text)
    assert main(["init", "space.yaml", *INIT, "--config", "deep.toml"]) == 2
    assert "deep.toml: nested deeper than 64 levels" in capsys.readouterr().err


def test_a_space_is_not_written_into_a_folder_that_is_not_there(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "no/space.yaml", *INIT, "--model", "llama_8b"]) == 2
    assert "no/space.yaml: there is no folder no; make it first" in capsys.readouterr().err


def test_a_program_that_is_not_there_ends_a_local_search_before_it_begins(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "space.yaml").write_text(SPACE)
    assert main(["search", "space.yaml", "--launcher", "local", "--run-dir", "run"]) == 2
    said = capsys.readouterr().err
    assert "space.yaml: trainer.command: there is no program 'no-such-trainer'" in said
    assert not (here / "run").exists()


def test_a_script_that_is_not_executable_is_told_so(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "train.sh").write_text("#!/bin/sh\necho MESHTUNE_RESULT '{\"speed\": 1}'\n")
    own = SPACE.replace("command: [no-such-trainer", "workdir: ., command: [./train.sh")
    (here / "space.yaml").write_text(own)
    search = ["search", "space.yaml", "--launcher", "local", "--run-dir", "run"]
    assert main(search) == 2
    told = "space.yaml: trainer.command: './train.sh' is not executable: chmod +x it, or begin with"
    assert told in capsys.readouterr().err
    assert main(["try", "space.yaml"]) == 1
    said = capsys.readouterr().out
    assert "cannot start './train.sh': no such program that is executable: chmod +x it" in said
    (here / "train.sh").chmod(0o755)
    assert main(search) == 0


def test_a_configuration_that_is_none_of_the_space_is_an_error_that_names_its_trial(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, lines, after = run / "journal.jsonl", b"", FIRST
    for record in Lines(journal):
        own = {key: value for key, value in record.items() if key not in ("after", "crc")}
        line, after = sealed(own | ({"config": {}} if "config" in own else {}), after)
        lines += line
    journal.write_bytes(lines)
    search = ["search", "gpt_22b_frontier", "--launcher", "simulate", "--run-dir", str(run)]
    for command in (["report", str(run)], search):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert "journal.jsonl: trial 1: its configuration is not of" in said
        assert "num_nodes: missing; put back the files" in said


def test_a_port_in_use_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["watch", str(run), "--port", str(port)]) == 1
    said = capsys.readouterr().err
    assert said == f"meshtune: 127.0.0.1:{port}: Address already in use; choose another port\n"


def test_a_run_that_is_only_readable_is_reported_by_watch(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_only = OSError(errno.EROFS, "Read-only file system", str(run / "report"))
    monkeypatch.setattr("analysis.write_report", Mock(side_effect=read_only))
    assert main(["report", str(run)]) == 2
    said = capsys.readouterr().err
    assert f"{run}: " in said and "Read-only file system" in said and "`meshtune watch RUN`" in said


def test_a_full_disk_is_named_with_its_file(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        copy = disk.path / "run"
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("report"))
        disk.fill()
        assert main(["report", str(copy)]) == 1
        said = capsys.readouterr().err
        assert f"{copy}/report" in said and "No space left on device; make room there" in said
        data = ["prepare-data", str(run / "space.yaml"), "--out", str(disk.path / "x")]
        init = ["init", str(disk.path / "space.yaml"), *INIT, "--model", "llama_8b"]
        for command, code, where in ((data, 2, "x.bin"), (init, 1, "space.yaml")):
            assert main(command) == code
            said = capsys.readouterr().err
            assert f"{where}: No space left on device; make room there" in said
        disk.free()
        assert main(["report", str(copy)]) == 0


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "make room there"),
        (errno.EROFS, "choose a path that you may read and write"),
        (errno.EMFILE, "raise `ulimit -n`"),
        (errno.ESTALE, "see whether it is mounted"),
        (errno.ENOLCK, "see whether it is mounted"),
    ],
)
def test_what_the_system_refuses_has_a_remedy(number: int, remedy: str) -> None:
    said = explained(OSError(number, os.strerror(number), "/data/\x1b[2J"))
    assert said.startswith(f"/data/\\x1b[2J: {os.strerror(number)}; ") and remedy in said


def test_a_write_that_fails_names_the_file_that_was_to_be(tmp_path: Path) -> None:
    (tmp_path / "results.csv").mkdir()
    with pytest.raises(OSError, match=r"'.*/results\.csv'$"):
        write_atomically(tmp_path / "results.csv", "text")
    assert [file.name for file in tmp_path.iterdir()] == ["results.csv"]


def test_a_log_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("precious")
    (tmp_path / "stdout.log").symlink_to(own)
    with pytest.raises(OSError, match="symbolic links"):
        LogFile(tmp_path / "stdout.log")
    assert own.read_text() == "precious"


@pytest.mark.skipif(not can_trace(), reason="needs strace, to fail system calls")
@pytest.mark.parametrize(
    ("module", "calls", "error"),
    [
        ("search", ("stat", "newfstatat", "statx"), "ESTALE"),
        ("cli/errors.py", ("openat",), "EMFILE"),
    ],
)
def test_modules_that_cannot_be_read_are_an_error_and_no_traceback(
    tmp_path: Path, module: str, calls: tuple[str, ...], error: str
) -> None:
    path = Path(meshtune.__file__).parent.parent / "workflows" / module
    stale = ["strace", "-f", "-qq", "-o", str(tmp_path / "trace")]
    for one in {str(path), cache_from_source(str(path))}:
        stale += ["-P", one]
    for call in calls:
        stale += ["-e", f"inject={call}:error={error}"]
    command = [sys.executable, "-m", "meshtune", "status", str(tmp_path)]
    done = subprocess.run([*stale, *command], capture_output=True, text=True, timeout=250)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr and done.stderr.startswith("meshtune: ")
    assert error == "ESTALE" or "errors.py: Too many open files" in done.stderr
