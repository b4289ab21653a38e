"""Run folders written line by line as the journal's schema says, over a landscape that is known."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

T0 = 1_700_000_000.0


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


def train_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the built-in trainer is told for ``config``: the paper's 175B model."""
    model = {
        "num_layers": 96, "hidden_size": 12288, "num_heads": 96, "vocab_size": 51200,
        "seq_length": 2048,
    }  # fmt: skip
    known = {"tp", "pp", "mbs", "gas", "zero_stage"} & config.keys()
    return {"model": model, "data": "/data/tokens", **{name: config[name] for name in known}}


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


class Journal:
    """Writes a run folder as a driver would, with a clock of its own."""

    def __init__(self, directory: Path, objective: Mapping[str, str]) -> None:
        self.directory, self.objective, self.t = directory, dict(objective), T0
        directory.mkdir(parents=True)
        self.path = directory / "journal.jsonl"
        self.open()

    def write(self, event: str, **keys: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"v": 1, "t": self.t, "event": event, **keys}) + "\n")

    def open(self) -> None:
        self.write(
            "opened", space="table4", fingerprint="f00d", seed=7, launcher="simulate",
            nodes=[f"n{i:03d}" for i in range(16)], objective=self.objective,
        )  # fmt: skip

    def propose(self, trial: int, config: Mapping[str, Any], why: str = "",
                expected: Mapping[str, float] | None = None) -> None:  # fmt: skip
        self.write(
            "proposed", trial=trial, config=config, by="forest", why=why, expected=expected or {}
        )

    def start(self, trial: int, attempt: int = 1, nodes: Iterable[str] = ("n000",)) -> None:
        self.write(
            "started", trial=trial, attempt=attempt, name=f"t{trial:04d}-{attempt}",
            nodes=list(nodes),
        )  # fmt: skip

    def end(
        self, trial: int, kind: str, objective: float | None = None, *, attempt: int = 1,
        result: Mapping[str, Any] | None = None, message: str = "", stderr_tail: str = "",
        elapsed_s: float = 60.0, final: bool = True,
    ) -> None:  # fmt: skip
        self.write(
            "ended", trial=trial, attempt=attempt, kind=kind, objective=objective, result=result,
            message=message, stderr_tail=stderr_tail, elapsed_s=elapsed_s, nodes=["n000"],
            final=final,
        )  # fmt: skip

    def run_one(self, trial: int, config: Mapping[str, Any], kind: str, value: float | None,
                message: str = "", stderr_tail: str = "") -> None:  # fmt: skip
        """One trial from proposal to end, with the files that a driver leaves in its folder."""
        self.propose(trial, config)
        self.t += 2
        self.start(trial)
        self.t += 20 if kind == "oom" else 60 + trial % 7
        key = next(iter(self.objective.values()))
        result = {"status": "ok", key: value, "peak_memory_bytes": 60 << 30} if value else None
        self.end(trial, kind, value, result=result, message=message, stderr_tail=stderr_tail)
        folder = self.directory / "trials" / f"{trial:04d}"
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text("step 1\n")
        (folder / "stderr.log").write_text(stderr_tail)
        (folder / "config.json").write_text(json.dumps(train_config(config)))
        argv = ["/usr/bin/python", "-m", "trainer", str(folder / "config.json")]
        spec = {
            "name": f"t{trial:04d}", "argv": argv,
            "num_nodes": config.get("num_nodes", 1), "ranks_per_node": 8, "env": {},
        }  # fmt: skip
        (folder / "trial.json").write_text(json.dumps(spec))


@pytest.fixture
def journal(tmp_path: Path) -> Callable[..., Journal]:
    """A new run folder to be written event by event."""

    def make(name: str = "run", objective: Mapping[str, str] | None = None) -> Journal:
        return Journal(tmp_path / "runs" / name, objective or {"maximize": "tflops_per_gpu"})

    return make


def write_run(directory: Path, count: int, *, minimize: str | None = None, seed: int = 0) -> Path:
    """A run folder of ``count`` trials over the landscape, closed."""
    objective = {"minimize": minimize} if minimize else {"maximize": "tflops_per_gpu"}
    book = Journal(directory, objective)
    for trial, config in enumerate(sample(count, seed)):
        kind, value = landscape(config)
        if minimize and value is not None:
            value = 100.0 / value
        message = "" if kind == "ok" else "CUDA out of memory in forward"
        book.run_one(trial, config, kind, value, message)
    book.write("closed", reason="budget: all trials are done")
    return directory


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Path]:
    """``write_run`` in a folder of the test's own."""
    return lambda count=100, **how: write_run(tmp_path / "runs" / "run", count, **how)


@pytest.fixture(scope="module")
def big_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 100 trials, for the tests of a module that share one report on it."""
    return write_run(tmp_path_factory.mktemp("runs") / "run", 100)
