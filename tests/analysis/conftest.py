"""Runs over a landscape that is known."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from analysis.run.events import Closed
from support.run_book import RunBook


def landscape(config: Mapping[str, Any]) -> tuple[str, float | None]:
    """A 175B model on Frontier in the spirit of Table IV: kind, and TFLOPS per GPU if ok.

    Memory falls with tp * pp and rises with mbs; among what fits, mbs dominates, then tp, then pp;
    ``num_nodes`` has no effect at all.
    """
    shards = config["tp"] * config["pp"]
    optimizer_gb = 1800 / shards if config["zero_stage"] else 2600 / shards
    if optimizer_gb + 6.0 * config["mbs"] / config["tp"] > 64:
        return "oom", None
    bubble = (config["pp"] - 1) / config["gas"]
    tflops = 12.0 + 1.2 * config["mbs"] - 1.2 * config["tp"] - 1.5 * bubble
    return "ok", tflops + 0.1 * config["zero_stage"]


def sample(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Configurations of a Table IV-like space, without repeats."""
    rng = random.Random(seed)
    seen: dict[str, dict[str, Any]] = {}
    while len(seen) < count:
        config = {
            "pp": rng.choice([4, 8, 12, 16]),
            "tp": rng.choice([2, 4, 8]),
            "mbs": rng.randint(4, 20),
            "gas": rng.choice([5, 10]),
            "zero_stage": rng.choice([0, 1]),
            "num_nodes": rng.choice([12, 16]),
        }
        seen.setdefault(json.dumps(config), config)
    return list(seen.values())


@pytest.fixture
def journal(tmp_path: Path) -> Callable[..., RunBook]:
    """A new run folder to be written event by event."""

    def make(name: str = "run", objective: Mapping[str, str] | None = None) -> RunBook:
        return RunBook(tmp_path / "runs" / name, objective or {"maximize": "tflops_per_gpu"})

    return make


def write_run(directory: Path, count: int, *, minimize: str | None = None, seed: int = 0) -> Path:
    """A run folder of ``count`` trials over the landscape, closed."""
    objective = {"minimize": minimize} if minimize else {"maximize": "tflops_per_gpu"}
    book = RunBook(directory, objective)
    for trial, config in enumerate(sample(count, seed)):
        kind, value = landscape(config)
        if minimize and value is not None:
            value = 100.0 / value
        message = "" if kind == "ok" else "CUDA out of memory in forward"
        book.run_one(trial, config, kind, value, message)
    book.write(Closed(reason="budget: all trials are done"))
    return directory


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Path]:
    """``write_run`` in a folder of the test's own."""
    return lambda count=100, **how: write_run(tmp_path / "runs" / "run", count, **how)


@pytest.fixture(scope="module")
def big_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 100 trials, for the tests of a module that share one report on it."""
    return write_run(tmp_path_factory.mktemp("runs") / "run", 100)
