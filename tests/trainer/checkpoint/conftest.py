"""One worker for all tests of checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.checkpoint_cases import Job, RunPhases, ask, start_worker


@pytest.fixture(scope="session")
def run_phases() -> Iterator[RunPhases]:
    """Runs phases of jobs (see ``checkpoint_worker``); results by job id."""
    with start_worker() as worker:

        def run(*phases: list[Job]) -> dict[str, dict[str, Any]]:
            ask(worker, phases)
            assert worker.stdout is not None
            answers = []
            for line in worker.stdout:
                answers.append(json.loads(line))
                if "code" in answers[-1]:
                    break
            assert answers and answers.pop().get("code") == 0, answers
            # A rank whose peer was killed may still say so: an error, which is no result.
            return {answer["id"]: answer["result"] for answer in answers if "result" in answer}

        yield run
        assert worker.stdin is not None
        worker.stdin.close()
