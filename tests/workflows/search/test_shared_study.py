"""One study asked and told by many: threads, processes, coroutines."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import meshtune
from analysis import RunBusyError, RunError, read_run
from analysis.run import lock
from analysis.run.lock import driver_of
from meshtune import Study

SPACE = """
version: 1
name: own
cluster: {name: toy, gpus_per_node: 2, memory_gib: 1, peak_fp32_tflops: 0.1}
trainer: {command: [echo, "{tp}"]}
parameters: {num_nodes: [1, 2], tp: [1, 2], mbs: [1, 2, 4, 8], gas: [1, 2]}
objective: {maximize: speed}
budget: {trials: 100}
"""
CONFIGURATIONS = 32
WORKER = """
import sys
from meshtune import Study
with Study(sys.argv[1], sys.argv[2], policy="random") as study:
    while (trial := study.ask()) is not None:
        study.tell(trial, {"speed": 10.0 * trial.config["tp"] + trial.config["mbs"]})
        print(trial.number)
"""
ASKER = """
import sys
from meshtune import Study
study = Study(sys.argv[1], sys.argv[2], policy="random")
print(study.ask().number, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def space(tmp_path: Path) -> Path:
    file = tmp_path / "own.yaml"
    file.write_text(SPACE)
    return file


def work(study: Study) -> list[int]:
    """Ask and tell until there is nothing left; the numbers of the trials that were told."""
    numbers = []
    while (trial := study.ask()) is not None:
        study.tell(trial, {"speed": 10.0 * trial.config["tp"] + trial.config["mbs"]})
        numbers.append(trial.number)
    return numbers


def in_threads(space: Path, folder: Path) -> list[int]:
    with Study(space, folder, policy="random") as study, ThreadPoolExecutor(8) as pool:
        every = [pool.submit(work, study) for _ in range(8)]
        return [number for each in every for number in each.result()]


def in_coroutines(space: Path, folder: Path) -> list[int]:
    async def worker(study: Study) -> list[int]:
        numbers = []
        while (trial := await asyncio.to_thread(study.ask)) is not None:
            speed = 10.0 * trial.config["tp"] + trial.config["mbs"]
            await asyncio.to_thread(study.tell, trial, {"speed": speed})
            numbers.append(trial.number)
        return numbers

    async def gather() -> list[int]:
        with Study(space, folder, policy="random") as study:
            every = await asyncio.gather(*(worker(study) for _ in range(8)))
        return [number for each in every for number in each]

    return asyncio.run(gather())


def python(code: str, space: Path, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, str(space), str(folder)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def in_processes(space: Path, folder: Path) -> list[int]:
    every = [python(WORKER, space, folder) for _ in range(3)]
    said = [process.communicate(timeout=250)[0] for process in every]
    assert [process.returncode for process in every] == [0, 0, 0]
    return [int(number) for text in said for number in text.split()]


@pytest.mark.parametrize("shared", [in_threads, in_coroutines, in_processes])
def test_every_configuration_is_asked_for_and_told_once(
    space: Path, tmp_path: Path, shared: Callable[[Path, Path], list[int]]
) -> None:
    folder = tmp_path / "run"
    assert sorted(shared(space, folder)) == list(range(1, CONFIGURATIONS + 1))
    run = read_run(folder)  # its lines follow one another, with their checksums
    configs = Counter(json.dumps(trial.config) for trial in run.trials.values())
    assert len(configs) == CONFIGURATIONS and set(configs.values()) == {1}
    assert {(trial.kind, len(trial.attempts)) for trial in run.trials.values()} == {("ok", 1)}
    assert len((folder / "results.csv").read_text().splitlines()) == CONFIGURATIONS + 1
    assert driver_of(folder) is None and [f.name for f in (folder / "workers").iterdir()] == [
        lock.TURN_NAME
    ]


def test_a_model_that_threads_ask_and_tell_proposes_nothing_twice(space: Path) -> None:
    with Study(space) as study, ThreadPoolExecutor(4) as pool:
        asked = list(pool.map(lambda _: study.ask(), range(12)))
        assert len({json.dumps(trial.config) for trial in asked if trial}) == 12


def test_what_a_dead_process_had_asked_for_is_asked_again_and_a_living_ones_is_not(
    space: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    dies = python(ASKER, space, folder)
    try:
        assert dies.stdout and dies.stdout.readline() == "1\n"
        with Study(space, folder, policy="random") as study:
            assert f"pid {dies.pid}" in (driver_of(folder) or "")
            assert (trial := study.ask()) is not None and trial.number == 2
            dies.kill()
            dies.wait()
            assert (again := study.ask()) is not None and again.number == 1
            study.tell(1, {"speed": 1.0})
            assert len(study.run.opened_t) == 1  # one session
    finally:
        dies.kill()
        dies.communicate()


def test_one_study_tells_what_another_has_asked_for_and_both_know(
    space: Path, tmp_path: Path
) -> None:
    with Study(space, tmp_path / "run") as asks, Study(space, tmp_path / "run") as tells:
        trial = asks.ask()
        assert trial is not None and tells.trials[0].config == trial.config
        tells.tell(trial.number, {"speed": 3.0})
        assert asks.best is not None and asks.best.objective == 3.0
        with pytest.raises(ValueError, match="only once"):
            asks.tell(trial, {"speed": 4.0})


def test_a_search_and_a_study_exclude_each_other(space: Path, tmp_path: Path) -> None:
    with (
        Study(space, tmp_path / "run"),
        pytest.raises(RunBusyError, match=rf"another meshtune \(.* pid {os.getpid()}\)"),
    ):
        meshtune.search(space, launcher="local", run_dir=tmp_path / "run")


def test_a_process_that_does_not_let_go_is_named(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "TURN_S", 0.05)
    with Study(space, tmp_path / "run") as study:
        other = lock.Worker(study.directory)
        with other.turn(), pytest.raises(RunBusyError, match=rf"turn: .* pid {os.getpid()} has"):
            study.ask()
        other.close()
        assert study.ask() is not None


def test_a_forked_or_sent_study_is_an_error_that_says_how_to_open_it(
    space: Path, tmp_path: Path
) -> None:
    with Study(space, tmp_path / "run") as study:
        with pytest.raises(TypeError, match=r"cannot be sent .* meshtune\.Study\(space, '.*run'\)"):
            pickle.dumps(study)
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            try:
                study.ask()
            except ValueError as error:
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        with os.fdopen(read) as said:
            assert f"is open in process {os.getpid()}" in said.read()
        assert study.ask() is not None


def test_a_process_of_which_nobody_can_tell_whether_it_lives_keeps_its_trial(
    space: Path, tmp_path: Path
) -> None:
    with Study(space, tmp_path / "run") as study:
        with Study(space, tmp_path / "run") as other:
            other.ask()
            name = study.run.trials[1].attempts[0].name.rpartition("-")[2]
        os.mkfifo(study.directory / "workers" / name)  # stands for a file that cannot be opened
        with pytest.raises(RunError, match="nobody can tell whether that process lives"):
            study.ask()
        (study.directory / "workers" / name).unlink()
        assert (trial := study.ask()) is not None and trial.number == 1


def test_half_a_line_of_a_killed_process_is_cut_by_the_next_call(
    space: Path, tmp_path: Path
) -> None:
    with Study(space, tmp_path / "run") as study:
        study.ask()
        with (tmp_path / "run" / "journal.jsonl").open("ab") as journal:
            journal.write(b'{"v": 2, "t": 17')
        assert (trial := study.ask()) is not None and trial.number == 2
    assert len(read_run(tmp_path / "run").trials) == 2
