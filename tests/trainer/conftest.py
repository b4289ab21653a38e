"""Starts the ranks that training tests need."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.formats import BLOCK

WORKER = Path(__file__).parents[1] / "support/rank_worker.py"
Jobs = list[dict[str, Any]]
RunRanks = Callable[[Jobs], dict[str, dict[str, Any]]]
Numbers = Callable[[int, int, torch.dtype, str, int], Tensor]


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


@pytest.fixture(scope="session")
def numbers() -> Numbers:
    """Makes (count, n) numbers that are "normal", "scaled" differently a block, or "any bits"."""

    def make(count: int, n: int, dtype: torch.dtype, kind: str, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        if kind == "any bits":
            integer = torch.int32 if dtype == torch.float32 else torch.int16
            limit = torch.iinfo(integer).max
            bits = torch.randint(-limit - 1, limit + 1, (count, n), generator=generator)
            # A block in two has small exponents only: else nearly all of them would hold a NaN.
            small = (torch.arange(n) // BLOCK + seed) % 2 == 0
            highest = 1 << (30 if dtype == torch.float32 else 14)
            return torch.where(small, bits & ~highest, bits).to(integer).view(dtype)
        x = torch.randn(count, n, generator=generator)
        if kind == "scaled":
            exponents = torch.randint(-150, 127, (count, -(-n // BLOCK)), generator=generator)
            x *= torch.exp2(exponents.float()).repeat_interleave(BLOCK, 1)[:, :n]
        return x.to(dtype)

    return make
