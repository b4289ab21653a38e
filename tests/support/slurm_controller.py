"""Slurm's commands as an Allocation asks them, without a Slurm."""

from __future__ import annotations

from slurm.srun.shell import NoAnswerError


class FakeController:
    """Answers as the controller of a job on one node; ``answers = False``: it is away.

    Args:
        steps: what squeue lists of the job's steps, one text per call; the last one stays.
    """

    def __init__(self, steps: list[str]) -> None:
        self.booted = "2026-11-21T08:00:00"  # an hour before the job
        self.answers, self.listings, self.cancelled = True, steps, list[str]()

    def __call__(self, argv: list[str]) -> str:
        if not self.answers:
            raise NoAnswerError("Unable to contact slurm controller")
        match argv:
            case ["squeue", "-h", "-s", *_]:
                return self.listings.pop(0) if len(self.listings) > 1 else self.listings[0]
            case ["scancel", *_, step]:
                self.cancelled.append(step)
                return ""
            case ["squeue", *_, job, "-o", "%i|%A|%T|%N|%C|%D|%L"]:
                return f"{job}|{job}|RUNNING|n1|64|1|UNLIMITED"
            case ["squeue", *_, job, "-o", "%i|%A|%T|%N"]:
                return f"{job}|{job}|RUNNING|n1"
            case ["scontrol", "show", "config"]:
                return f"BOOT_TIME               = {self.booted}"
            case ["squeue", *_, job, "-o", "%i|%A|%S"]:
                return f"{job}|{job}|2026-11-21T09:00:00"
            case ["squeue", *_, job, "-o", "%i|%A|%N"]:
                return f"{job}|{job}|n1"
            case ["sinfo", *_]:
                return "n1|idle"
            case _:
                return "n1"
