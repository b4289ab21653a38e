"""Why a session of a search ended, and the process's exit code for it."""

from __future__ import annotations

from dataclasses import dataclass

DONE, FAILED, CONTINUE, INTERRUPTED = 0, 1, 3, 130


@dataclass(frozen=True)
class Ending:
    """Why the driver stopped, and the process's exit code."""

    reason: str
    code: int
