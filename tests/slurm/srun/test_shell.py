"""Slurm's commands, and a controller that does not answer for a while."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from slurm.srun import shell
from slurm.srun.shell import NoAnswerError, SlurmError, UnknownJobError, patiently


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a squeue that says something, as Slurm 22.05 was seen to, and fails."""

    def make(says: str) -> None:
        program = tmp_path / "squeue"
        program.write_text(f"#!/bin/sh\necho '{says}' >&2; exit 1\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return make


@pytest.mark.parametrize(
    ("says", "error"),
    [
        (
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
            NoAnswerError,
        ),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", NoAnswerError),
        ("slurm_load_jobs error: Zero Bytes were transmitted or received", NoAnswerError),
        ("slurm_load_jobs error: Slurm backup controller in standby mode", NoAnswerError),
        ("slurm_load_jobs error: Protocol authentication error", NoAnswerError),  # no munge
        ("slurm_load_jobs error: Invalid job id specified", UnknownJobError),
        ("squeue: error: Invalid user: nobody2", SlurmError),
    ],
)
def test_silence_is_told_from_a_job_that_does_not_exist(
    squeue: Callable[[str], None], says: str, error: type[SlurmError]
) -> None:
    squeue(says)
    with pytest.raises(SlurmError, match="squeue: ") as raised:
        shell.run(["squeue", "-j", "7"])
    assert type(raised.value) is error


def test_a_command_that_never_returns_is_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(shell, "TIMEOUT_S", 0.2)
    with pytest.raises(NoAnswerError, match=r"did not answer within 0\.2 s"):
        shell.run(["squeue"])


class Controller:
    """Answers after so many tries that fail with ``error``."""

    def __init__(self, failures: float, error: SlurmError) -> None:
        self.failures, self.error, self.tries = failures, error, 0

    def __call__(self, argv: Sequence[str]) -> str:
        self.tries += 1
        if self.tries <= self.failures:
            raise self.error
        return "n[1-2]"


def test_a_controller_is_asked_again_with_pauses_that_double() -> None:
    controller = Controller(7, NoAnswerError("squeue: Socket timed out"))
    pauses: list[float] = []
    told: list[str] = []
    assert patiently(["squeue"], controller, 600.0, pauses.append, told.append) == "n[1-2]"
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    assert len(told) == 1
    assert "Socket timed out" in told[0] and "600 s" in told[0]


def test_patience_ends() -> None:
    controller = Controller(float("inf"), NoAnswerError("squeue: Socket timed out"))
    pauses: list[float] = []
    with pytest.raises(NoAnswerError):
        patiently(["squeue"], controller, 60.0, pauses.append, lambda _: None)
    assert sum(pauses) == pytest.approx(60.0, abs=1.0)


def test_an_answer_is_final_whatever_it_says() -> None:
    controller = Controller(1, UnknownJobError("squeue: Invalid job id specified"))
    with pytest.raises(UnknownJobError):
        patiently(["squeue"], controller)
    assert controller.tries == 1
