"""A field of a job is declared in one place; spaces, requirements and columns derive from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from trainer.plan.annotations import Column, Counts, Refused, columns, grouped, value_types
from trainer.plan.config import TrainConfig
from trainer.plan.fields import Choices, OtherChoices, Preset, Settings
from trainer.plan.limits import ConfigError
from trainer.plan.presets import PRESETS
from trainer.plan.rules.catalog import counting, refused

FIELD = '''    fold_norms: Annotated[
        bool,
        Counts("tp > 1", "fold_norms_needs_tp", "with tp {tp}, which has nothing to fold"),
        Refused("it has no folded norms"),
        Column("folds"),
    ] = False
    """fold each norm into the product behind it"""
'''


def test_a_boolean_field_from_outside_is_known_without_another_edit(tmp_path: Path) -> None:
    """A copy of the trainer with one more field, which nothing else names."""
    repository = Path(__file__).parents[3]
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(repository / "trainer", tmp_path / "trainer", ignore=skip)
    file = tmp_path / "trainer" / "plan" / "fields.py"
    head, line, tail = file.read_text().partition("    overlap_all_reduce: ")
    file.write_text(head + FIELD + line + tail)
    (tmp_path / "space.yaml").write_text(SPACE)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{repository}"},
        cwd=tmp_path, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


SPACE = """
version: 1
name: folded
model: tiny
cluster: {name: toy, gpus_per_node: 8, memory_gib: 1, peak_fp32_tflops: 0.1}
trainer: {builtin: {data: python-source, precision: fp32, device: cpu}}
parameters:
  tp: [1, 2]
  mbs: 1
  gas: 2
  engine: [meshtune, deepspeed]
  compile: [false, true]
  tune_kernels: [false, true]
  fold_norms: [false, true]
objective: {maximize: tokens_per_second}
"""
PROGRAM = """
from pathlib import Path

from analysis.prediction.columns import unpriced_parameters
from search_spaces import SpaceError, load_space
from trainer import deepspeed_requirements
from trainer.plan.config import TrainConfig
from trainer.plan.fields import further_columns
from trainer.plan.limits import ConfigError

# The space language takes its values and knows its default, and nothing but truth values.
space = load_space(Path("space.yaml"))
usual = {"tp": 2, "mbs": 1, "gas": 2, "engine": "meshtune", "compile": False, "tune_kernels": False}
assert space.train_config({**usual, "fold_norms": True}, "x")["fold_norms"] is True
text = Path("space.yaml").read_text().replace("fold_norms: [f", "fold_norms: [3, f")
Path("wrong.yaml").write_text(text)
try:
    load_space(Path("wrong.yaml"))
    raise SystemExit("3 is no truth value")
except SpaceError as error:
    assert "found 3, accepted true or false" in str(error), error

# Its condition is a rule of the space and a requirement of the trainer; so is what engines refuse.
without = {**usual, "tp": 1, "fold_norms": True}
rule = space.first_violation(without)
assert rule.startswith("fold_norms_needs_tp: not fold_norms or tp > 1"), rule
config = TrainConfig.parse(space.train_config(without, "x"))
try:
    config.check(8)
    raise SystemExit("tp 1")
except ConfigError as error:
    said = "fold_norms with tp 1, which has nothing to fold; set fold_norms: false"
    assert str(error) == said, error
assert "deepspeed_fold_norms" in {rule.name for rule in space.rules}
texts = {r.name: r.refusal for r in deepspeed_requirements("cpu")}
said = "fold_norms: it has no folded norms; set fold_norms: false"
assert texts["deepspeed_fold_norms"] == said, texts

# It is a column of the cost model, which sees no difference in the two fields without one.
assert further_columns(())["folds"] == (0.0, bool)
assert unpriced_parameters(space) == ["compile", "tune_kernels"]
"""


def test_every_field_is_a_choice_a_setting_or_a_fact_of_model_cluster_and_trial() -> None:
    facts = {"model", "warmup_steps", "measured_steps", "ranks_per_node", "ranks_per_pair"}
    assert {*TrainConfig.model_fields} == {*Choices.model_fields, *Settings.model_fields} | facts
    assert not {*OtherChoices.model_fields} & {*TrainConfig.model_fields}


def test_every_choice_is_of_one_type_that_conditions_can_read() -> None:
    assert value_types(Choices).keys() == Choices.model_fields.keys()
    assert value_types(Settings).keys() < Settings.model_fields.keys()  # some are records
    assert get_args(Preset) == PRESETS


def test_words_are_numbered_in_the_order_of_their_type() -> None:
    (_, column), (_, bits) = columns(Choices)["recompute"], columns(Choices)["gather_bits"]
    assert column.codes == {"none": 0, "selective": 1, "full": 2}
    assert bits.codes == {True: 8.125} and bits.other == 0
    assert columns(Choices)["ep"] == ("ep", Column("ep", None, 0.0, mixtures=True))


def test_requirements_of_one_annotation_are_one_and_name_all_its_fields() -> None:
    stages = next(r for r in counting() if r.name == "stage_layers_need_pp")
    assert stages.text == "(first_stage_layers == 0 and last_stage_layers == 0) or pp > 1"
    grid = [r for r in refused("deepspeed") if "gx" in r.text]
    assert [r.text for r in grid] == ["gx == 1 and gy == 1 and gz == 1"]
    assert len({c.rule for c in grouped(Choices, Counts)}) == len(counting())
    assert all(r.engine == "deepspeed" for r in grouped(Settings, Refused))


@pytest.mark.parametrize("name", ["save", "load", "initial_load_path", "loss_mask"])
def test_a_setting_that_an_engine_has_no_use_for_is_refused_with_its_value(name: str) -> None:
    shape = {"num_layers": 1, "hidden_size": 8, "num_heads": 1, "vocab_size": 8, "seq_length": 8}
    values = {"model": shape, "data": "x", name: "here"}
    assert TrainConfig.parse(values)
    with pytest.raises(ConfigError, match=f"engine deepspeed: {name} here: .*; remove {name}"):
        TrainConfig.parse({**values, "engine": "deepspeed"})


def test_fp8_is_refused_of_the_built_in_trainer_with_a_remedy() -> None:
    shape = {"num_layers": 1, "hidden_size": 8, "num_heads": 1, "vocab_size": 8, "seq_length": 8}
    with pytest.raises(ConfigError, match="has no FP8; set bf16, or search another trainer's"):
        TrainConfig.parse({"model": shape, "data": "x", "precision": "fp8"})
