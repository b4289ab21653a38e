"""A checkpoint that is not as it was saved is told in a line, and nothing in it is executed."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint.metadata import Metadata

from support.checkpoint_cases import RunPhases, job
from trainer.checkpoint.folders import complete
from trainer.checkpoint.integrity import checksum


def flip(file: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def replace(file: Path, data: bytes) -> None:
    """Replace a file by somebody who also knows of the checksums."""
    file.write_bytes(data)
    known = file.with_name("checksums.json")
    known.write_text(json.dumps(json.loads(known.read_text()) | {file.name: checksum(file)}))


def edit(folder: Path, **values: Any) -> None:
    """Change what the record says; None removes a key."""
    file = folder / "training.json"
    record = json.loads(file.read_text()) | values
    left_out = {key for key, value in values.items() if value is None}
    replace(file, json.dumps({k: v for k, v in record.items() if k not in left_out}).encode())


class Executed:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


class Asks:
    """A pickle that asks for what is no member of an enumeration."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (Metadata, "__init__")


class ByName(pickle.Pickler):
    """Writes members of enumerations as Python 3.11.0 to 3.11.3 do."""

    def reducer_override(self, value: object) -> Any:
        return (getattr, (type(value), value.name)) if isinstance(value, Enum) else NotImplemented


def write_by_name(table: Path) -> None:
    written = io.BytesIO()
    ByName(written).dump(pickle.loads(table.read_bytes()))
    assert b"getattr" in written.getvalue()
    replace(table, written.getvalue())


def write_as_older_torch(table: Path) -> None:
    """Earlier versions of torch wrote neither the identity of a save nor a version."""
    content = pickle.loads(table.read_bytes())
    for name in ("storage_meta", "version"):
        vars(content).pop(name, None)
    replace(table, pickle.dumps(content))


NEWER_TORCH = b"ctorch.distributed.checkpoint.metadata\nShardStorageMetadata\n."
"""A table of contents with a class that this torch does not have."""


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "data": (lambda p: flip(p / "__1_0.distcp"), "__1_0.distcp is damaged: its CRC-32 is "),
    "table": (lambda p: flip(p / ".metadata"), ".metadata is damaged: "),
    "record": (lambda p: flip(p / "training.json"), "training.json is damaged: "),
    "cut": (lambda p: os.truncate(p / "__0_0.distcp", 99), "__0_0.distcp is damaged: "),
    "lost": (lambda p: (p / "__0_0.distcp").unlink(), "__0_0.distcp: there is no such file"),
    "no list": (lambda p: (p / "checksums.json").unlink(), "no checksums.json; "),
    "pipe": (
        lambda p: ((p / "checksums.json").unlink(), os.mkfifo(p / "checksums.json")),
        "checksums.json: found a pipe, accepted a file",
    ),
    "deep": (
        lambda p: (p / "checksums.json").write_text("[" * 100_000), "checksums.json: nested deeper"
    ),
    "step": (lambda p: edit(p, step="2"), "training.json: step: Input should be a valid integer, "),
    "scale": (lambda p: edit(p, loss_scale=-1.0), "training.json: loss_scale: Input should be gr"),
    "key": (lambda p: edit(p, seed=None), "training.json: seed: Field required"),
    "list": (lambda p: replace(p / "training.json", b"[]"), "training.json: all of it: "),
    "code": (
        lambda p: replace(p / ".metadata", pickle.dumps(Executed(p / "executed"))),
        ".metadata names posix.mkdir: not loaded",
    ),
    "newer torch": (
        lambda p: replace(p / ".metadata", NEWER_TORCH),
        ".metadata names torch.distributed.checkpoint.metadata.ShardStorageMetadata: not loaded",
    ),
    "attribute": (
        lambda p: replace(p / ".metadata", pickle.dumps(Asks())), ".metadata asks for __init__ of "
    ),
}  # fmt: skip


def test_what_is_not_as_it_was_saved_is_told_in_a_line_that_names_the_file(
    run_phases: RunPhases, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    run_phases([job("saved", 2, "train", {}, save=str(saved))])
    (step,) = saved.iterdir()
    known = json.loads((step / "checksums.json").read_text())
    assert known.keys() == {file.name for file in step.iterdir()} - {"checksums.json"}
    jobs = []
    for ranks, (name, (damage, _)) in enumerate(DAMAGE.items()):
        folder = tmp_path / name
        shutil.copytree(saved, folder)
        damage(folder / step.name)
        jobs.append(job(name, ranks % 3 + 1, "train", {}, load=str(folder)))
    shutil.copytree(saved, tmp_path / "older Python")
    write_by_name(tmp_path / "older Python" / step.name / ".metadata")
    jobs.append(job("older Python", 2, "train", {}, load=str(tmp_path / "older Python")))
    shutil.copytree(saved, tmp_path / "older torch")
    write_as_older_torch(tmp_path / "older torch" / step.name / ".metadata")
    jobs.append(job("older torch", 1, "train", {}, load=str(tmp_path / "older torch")))
    answers = run_phases(jobs)
    assert answers["older torch"]["losses"] == pytest.approx(answers["older Python"]["losses"])
    for name, (_, says) in DAMAGE.items():
        folder = tmp_path / name / step.name
        assert answers[name]["error"] == "CheckpointError"
        assert answers[name]["says"].startswith(f"cannot read {folder}: "), answers[name]
        assert says in answers[name]["says"] and "\n" not in answers[name]["says"], answers[name]
        assert "goes on from the checkpoint before it" in answers[name]["says"]
        assert not (folder / "executed").exists()


def test_a_run_sets_a_damaged_checkpoint_aside_and_goes_on_from_the_one_before(
    run_phases: RunPhases, tmp_path: Path
) -> None:
    saved = {"save": str(tmp_path / "a"), "save_interval": 1, "keep_latest_k": 3}
    answers = run_phases([job("a", 2, "train", {}, measured_steps=4, **saved)])
    steps = {step: tmp_path / f"a/step-0000000{step}" for step in (2, 3, 4)}
    assert {path.name for path in (tmp_path / "a").iterdir()} == {p.name for p in steps.values()}
    flip(steps[4] / "__1_0.distcp")
    (steps[3] / ".metadata").unlink()
    shutil.copytree(tmp_path / "a", tmp_path / "all")
    flip(tmp_path / "all" / steps[2].name / "__0_0.distcp")
    resumed = saved | {"load": saved["save"], "measured_steps": 2}
    none = resumed | {"save": str(tmp_path / "all"), "load": str(tmp_path / "all")}
    answers |= run_phases([job("b", 1, "train", {}, **resumed), job("c", 1, "train", {}, **none)])
    assert answers["b"]["losses"] == pytest.approx(answers["a"]["losses"][2:], rel=1e-6)
    assert complete(tmp_path / "a").keys() == {2, 3, 4}
    left = {path.name[:13] for path in (tmp_path / "a").glob("*.damaged")}
    assert left == {steps[3].name, steps[4].name}
    # Without a whole one nothing is set aside, and nothing begins anew.
    assert answers["c"]["says"].startswith(f"cannot read {tmp_path / 'all' / steps[4].name}: ")
    assert complete(tmp_path / "all").keys() == {2, 3, 4}
