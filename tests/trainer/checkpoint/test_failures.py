"""Checkpoints are whole whatever happens while they are written."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.checkpoint_cases import Job, RunPhases, ask, assert_same, contents, job, start_worker
from trainer.checkpoint.folders import complete


def job_of(ranks: int, action: str, **values: Any) -> Job:
    return job(f"{action} {ranks}", ranks, action, {}, **values)


@pytest.mark.parametrize(
    ("rank", "limit", "width"),
    [(1, 50_000, 36), (1, 200_000, 288), (0, 100, 36)],
    ids=["data", "data of more than a buffer", "record"],
)
def test_a_full_disk_is_one_clear_error_and_costs_no_earlier_checkpoint(
    run_phases: RunPhases, tmp_path: Path, rank: int, limit: int, width: int
) -> None:
    options = {"rank": rank, "bytes": limit}
    case = job("x", 2, "full_disk", options, save=str(tmp_path), hidden_size=width)
    (answer,) = run_phases([case]).values()
    assert answer["says"].startswith(f"cannot save {tmp_path}/step-00000002: rank {rank}: ")
    assert "File too large" in answer["says"]
    assert "\n" not in answer["says"]
    assert answer["left"] == ["step-00000001"]
    assert list(complete(tmp_path)) == [1, 2]


EVENTS = {0: 31, 1: 5}
"""Things that ranks 0 and 1 do in the folder in one save."""
ALIKE = {(0, event) for event in range(27, 31)}
"""Removing the old checkpoint's other files: the first stands for all."""


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.heavy)])
def test_a_rank_killed_at_any_moment_of_saving_costs_no_complete_checkpoint(
    run_phases: RunPhases, tmp_path: Path, every: int
) -> None:
    moments = [(rank, event) for rank in EVENTS for event in range(1, EVENTS[rank] + 2)]
    moments = [moment for moment in moments if moment not in ALIKE]
    moments = [*moments[:-1:every], moments[-1]]  # the last is of a save that is undisturbed
    folders = {(rank, event): tmp_path / f"{rank} {event}" for rank, event in moments}
    phases = [
        [job(folder.name, 2, "killed", {"rank": rank, "event": event}, save=str(folder))]
        for (rank, event), folder in folders.items()
    ]
    whole = {step: tmp_path / f"whole {step}" for step in (1, 2, 3)}
    undisturbed = [
        job(f"whole {step}", 2, "train", {}, save=str(folder), measured_steps=step)
        for step, folder in whole.items()
    ]
    answers = run_phases(undisturbed, *phases)
    expected = {
        step: (contents(path), (path / "training.json").read_text())
        for step, path in ((step, complete(folder)[step]) for step, folder in whole.items())
    }
    for (rank, event), folder in folders.items():
        survived = event > EVENTS[rank]
        assert (folder.name in answers) == survived, "EVENTS is not what a save does"
        found = complete(folder)
        latest = max(found)
        assert latest == 3 if survived else latest in (2, 3)
        assert latest - 1 in found, "the one before the last went too early"
        for step, path in found.items():
            assert (path / "training.json").read_text() == expected[step][1]
            assert_same(contents(path), expected[step][0])
    again = [
        job(folder.name, 1, "train", {}, measured_steps=1, save=str(folder), load=str(folder))
        for folder in list(folders.values())[2 :: 6 // every]
    ]
    run_phases(again)
    for name in (case["id"] for case in again):
        left = list((tmp_path / name).iterdir())
        assert len(left) == len(complete(tmp_path / name)) == 2


def being_saved(folder: Path) -> int:
    """The step whose data are being written, if any are."""
    with suppress(FileNotFoundError):  # it was just made complete
        return max((int(p.parent.name[5:13]) for p in folder.glob("*.partial/*.distcp")), default=0)
    return 0


def test_all_ranks_killed_at_once_while_saving_leave_what_the_next_run_goes_on_from(
    run_phases: RunPhases, tmp_path: Path
) -> None:
    values = {"zero_stage": 3, "hidden_size": 256, "optimizer": {"lr": 1e-3}}
    endless = {"save": str(tmp_path / "a"), "save_interval": 1, "measured_steps": 10_000}
    with start_worker() as worker:
        ask(worker, [[job_of(2, "train", **values, **endless)]])
        deadline = time.monotonic() + 600
        while (step := being_saved(tmp_path / "a")) < 3:
            assert worker.poll() is None and time.monotonic() < deadline
            time.sleep(0.001)
        worker.kill()  # and with it, by PR_SET_PDEATHSIG, its ranks
        assert worker.stdout is not None
        worker.stdout.read()  # until the last rank is gone
    latest = max(complete(tmp_path / "a"))
    assert latest >= step - 1
    go_on = {"load": str(tmp_path / "a"), "measured_steps": 2}
    answers = run_phases(
        [
            job_of(1, "train", **values, measured_steps=latest + 2),
            job_of(2, "go_on", tp=2, **go_on, **values | {"zero_stage": 0}),
        ]
    )
    assert answers["go_on 2"]["first"] == latest
    whole = answers["train 1"]["losses"]
    assert answers["go_on 2"]["losses"] == pytest.approx(whole[latest:], rel=1e-6)
