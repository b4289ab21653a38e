"""Figures of single steps, and what becomes of them when a run goes on."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.loop import MetricsWriter
from trainer.plan.sections import Metrics


def steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").open()]


def test_a_run_that_goes_on_replaces_the_steps_after_its_checkpoint(tmp_path: Path) -> None:
    writer = MetricsWriter(Metrics(), tmp_path, 0, {})
    for step in range(1, 6):
        writer.write(step, {"loss": 1.0 / step})
    writer.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')  # killed here
    again = MetricsWriter(Metrics(), tmp_path, 3, {})
    again.write(4, {"loss": math.nan})
    again.close()
    assert steps(tmp_path) == [1, 2, 3, 4]
    last = (tmp_path / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last) == {"step": 4, "loss": None}


def test_a_run_that_begins_anew_begins_the_file_anew(tmp_path: Path) -> None:
    for _ in range(2):
        writer = MetricsWriter(Metrics(log_freq=2), tmp_path, 0, {})
        for step in range(1, 6):
            validation = {"validation_loss": 1.0} if step == 3 else {}
            writer.write(step, {"loss": 1.0, **validation})
        writer.close()
    assert steps(tmp_path) == [2, 3, 4]


def test_tensorboard_reads_what_is_written_for_it(tmp_path: Path) -> None:
    reading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="needs the package tensorboard",
    )
    writer = MetricsWriter(Metrics(enable_tensorboard=True), tmp_path, 0, {})
    writer.write(1, {"loss": 2.0, "grad_norm": math.inf})
    writer.write(2, {"loss": 1.0, "grad_norm": 0.5})
    writer.close()
    board = reading.EventAccumulator(str(tmp_path / "tb"))
    board.Reload()
    assert [(e.step, e.value) for e in board.Scalars("loss")] == [(1, 2.0), (2, 1.0)]
    assert [(e.step, e.value) for e in board.Scalars("grad_norm")] == [(2, 0.5)]


def leveldb_records(log: bytes) -> Iterator[bytes]:
    """What is in a file of W&B: LevelDB's log format behind a header of 7 bytes."""
    data, place, block = b"", 7, 32768
    while place + 7 <= len(log):
        if block - place % block < 7:  # filled up: no header fits
            place += block - place % block
            continue
        _, length, kind = struct.unpack("<IHB", log[place : place + 7])
        place += 7 + length
        data += log[place - length : place]
        if kind in (1, 4):  # a whole record, or the last part of one
            yield data
            data = b""


def test_weights_and_biases_gets_the_same_figures_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ``wandb sync`` would send later."""
    wandb = pytest.importorskip("wandb", reason="needs the package wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    writer = MetricsWriter(Metrics(enable_wandb=True), tmp_path, 0, {"mbs": 2})
    writer.write(1, {"loss": 2.0, "grad_norm": math.inf})
    writer.write(2, {"loss": 1.0, "grad_norm": 0.5})
    writer.close()
    assert wandb.run is None, "finished"
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    history = []
    for data in leveldb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.HasField("history"):
            items = {item.key or item.nested_key[0]: item for item in record.history.item}
            history.append({key: json.loads(item.value_json) for key, item in items.items()})
    figures = [{key: row[key] for key in row if not key.startswith("_")} for row in history]
    assert figures == [{"loss": 2.0}, {"loss": 1.0, "grad_norm": 0.5}]
