"""Starts the ranks that training tests need."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).parents[1] / "support/rank_worker.py"
Jobs = list[dict[str, Any]]
RunRanks = Callable[[Jobs], dict[str, dict[str, Any]]]


@pytest.fixture(scope="session")
def run_ranks() -> RunRanks:
    """Runs jobs (see ``rank_worker``) in as few processes as can be; results by job id."""

    def run(jobs: Jobs, timeout_s: float = 280) -> dict[str, dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, str(WORKER)],
            input=json.dumps(jobs),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        answers = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]
        errors = [answer["error"] for answer in answers if "error" in answer]
        assert not errors, errors[0]
        assert done.returncode == 0, done.stderr[-3000:]
        return {answer["id"]: answer["result"] for answer in answers}

    return run
