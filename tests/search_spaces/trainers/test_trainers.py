"""Trainers that a space can name keep the contract; installed ones are found by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshtune.testing.trainers import TrainerContract
from search_spaces import SpaceError, load_space
from search_spaces.language.trainer_schema import TrainerSpec
from search_spaces.shipped import SHIPPED
from search_spaces.trainers.trainer import Trainer, TrialFacts

MINE = """
version: 1
name: contract
cluster: {name: toy, gpus_per_node: 4, memory_gib: 1, peak_fp32_tflops: 0.1}
trainer: {use: mine, options: {script: train.py}}
parameters: {num_nodes: [1, 2], tp: [1, 2], cp: [1, 2, 4], mbs: [1, 2, 4]}
objective: {maximize: speed}
"""


class Mine(Trainer):
    """A trainer of another distribution, with an axis and a rule of its own."""

    framework = "torchtitan"

    def __init__(self, spec: TrainerSpec) -> None:
        super().__init__(spec)
        if set(spec.options) != {"script"}:
            raise ValueError(f"options {sorted(spec.options)}: accepted script")

    def command(self, trial: TrialFacts) -> tuple[str, ...]:
        facts = trial.facts
        sizes = [f"--{name}={facts[name]}" for name in ("tp", "cp", "dp", "mbs", "num_nodes")]
        return ("python", str(self.spec.options["script"]), *sizes)

    @property
    def axes(self) -> Sequence[str]:
        return ("cp",)

    @property
    def constraints(self) -> Sequence[str]:
        return ("mbs * cp <= 4",)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An environment in which the trainer ``mine`` is installed."""
    monkeypatch.setitem(sys.modules, "acme_trainer", SimpleNamespace(Mine=Mine))  # type: ignore[arg-type]
    found = EntryPoints([EntryPoint("mine", "acme_trainer:Mine", "meshtune.trainers")])
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: found)
    yield


class TestBuiltin(TrainerContract):
    text = (SHIPPED / "tiny_cpu.yaml").read_text()


class TestCommand(TrainerContract):
    text = MINE.replace(
        "{use: mine, options: {script: train.py}}",
        "{command: [train, '{tp}', '{cp}', '{dp}', '{mbs}', '{num_nodes}'], axes: [cp], "
        "result: {patterns: {speed: 'speed ([0-9.]+)'}}}",
    )


class TestInstalled(TrainerContract):
    text = MINE


def test_an_installed_trainers_axis_is_counted_and_its_rule_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(MINE)
    space = load_space(file)
    config = {"num_nodes": 1, "tp": 2, "cp": 2, "mbs": 1}
    assert space.facts(config)["dp"] == 1
    violation = space.first_violation({**config, "mbs": 4})
    assert violation is not None and "mbs * cp <= 4" in violation


@pytest.mark.parametrize(
    ("trainer", "complaint"),
    [
        ("{use: yours}", "no trainer 'yours': there are meshtune, command, mine"),
        ("{use: mine, options: {skript: x}}", "accepted script"),
        ("{use: mine, command: [train]}", "exactly one of: builtin, adapter, command, use"),
        ("{command: [train], options: {a: 1}}", "'options' goes with 'use'"),
    ],
)
def test_a_wrong_trainer_is_an_error_that_says_what_is_accepted(
    tmp_path: Path, trainer: str, complaint: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(MINE.replace("{use: mine, options: {script: train.py}}", trainer))
    with pytest.raises(SpaceError, match=r"mine\.yaml") as error:
        load_space(file)
    assert complaint in str(error.value)
