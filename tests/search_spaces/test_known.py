"""One record per known trainer: its options, its log and its habits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from search_spaces import SearchSpace, SpaceError
from search_spaces.frameworks import Framework, Habits
from search_spaces.known import FRAMEWORKS, LOG_FORMATS, framework_named
from search_spaces.language.adapter_schema import AdapterFile, KnownTrainer
from search_spaces.shipped import known_file

Load = Callable[[str], SearchSpace]
RECORDS = sorted(file.stem for file in known_file("*").parent.glob("*.yaml"))
OWN = """\
name: mine
source: a test
framework: fsdp
log:
  step: 'step (?P<step>\\d+)'
  patterns:
    step_time_s: [{regex: '{step} took {number}', unit: ms}]
    loss: [{like: deepspeed-like}]
command: [python, train.py]
settings:
  mbs: {arguments: {batch: "{mbs}"}}
"""
SPACE = """\
version: 1
cluster: dgx_h100
model: llama_8b
trainer: {adapter: mine.yaml}
parameters: {num_nodes: 1, tp: 1, mbs: [1, 2], gas: 1}
objective: {maximize: tokens_per_second}
"""


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_is_valid_and_says_something(name: str) -> None:
    assert name in {*FRAMEWORKS, *LOG_FORMATS}
    if name in FRAMEWORKS:
        assert FRAMEWORKS[name].name == name
    if name in LOG_FORMATS:
        assert LOG_FORMATS[name].patterns


def test_every_habit_says_what_it_is_and_every_size_its_unit() -> None:
    described = Habits.descriptions()
    for name, field in Habits.model_fields.items():
        assert name in described
        notes = field.json_schema_extra or {}
        is_number = isinstance(field.default, int | float) and not isinstance(field.default, bool)
        assert not is_number or "unit" in notes, name


def test_a_habit_that_no_record_has_is_refused() -> None:
    with pytest.raises(ValidationError, match="flash_atention"):
        framework_named("fsdp").with_habits(flash_atention=False)
    with pytest.raises(ValidationError, match="gradient_bytes"):
        framework_named("fsdp").with_habits(gradient_bytes="2")
    assert framework_named("fsdp").with_habits(gradient_bytes=2).gradient_bytes == 2


def test_an_unknown_framework_has_the_habits_of_most() -> None:
    assert framework_named("in-house") == Framework(name="in-house")
    assert framework_named("megatron-bridge-26.06") is framework_named("megatron-bridge")


def test_a_rule_of_a_habit_that_there_is_not_is_refused(load: Load, tmp_path: Path) -> None:
    for rule in (
        "flash_atention: {key: fa, default: true}",
        "flash_attention: {key: fa, default: 2}",
    ):
        (tmp_path / "mine.yaml").write_text(OWN.replace("log:", f"stated: {{{rule}}}\nlog:"))
        with pytest.raises(SpaceError, match=rf"mine.yaml:4:.*{rule.split(':')[0]}"):
            load(SPACE)


def test_an_adapter_is_a_record_that_starts_its_trainer() -> None:
    more = AdapterFile.model_fields.keys() - KnownTrainer.model_fields.keys()
    assert {"command", "settings", "framework"} <= more


def test_a_record_of_ones_own_has_its_log_patterns(load: Load, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(OWN.replace("deepspeed-like", "megatron-lm"))
    space = load(SPACE)
    patterns = space.program.log.patterns
    assert [p.regex for p in patterns["loss"]] == [
        p.regex for p in LOG_FORMATS["megatron-lm"].patterns["loss"]
    ]
    [time] = patterns["step_time_s"]
    assert time.regex.startswith(r"step (?P<step>\d+) took (?P<value>")
    assert (time.unit, time.reduce) == ("ms", "median")


def test_a_record_that_logs_like_an_unknown_trainer_is_refused(load: Load, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(OWN)
    with pytest.raises(SpaceError, match=r"mine.yaml:8:19.*found 'deepspeed-like', accepted"):
        load(SPACE)
    (tmp_path / "mine.yaml").write_text(OWN.replace("deepspeed-like", "deepspeed"))
    with pytest.raises(SpaceError, match=r"trainer.adapter.*log.patterns.loss.*peak_memory_bytes"):
        load(SPACE)


def test_habits_of_a_record_of_ones_own_are_refused_with_the_remedy(
    load: Load, tmp_path: Path
) -> None:
    own = OWN.replace("deepspeed-like", "megatron-lm") + "habits: {gradient_bytes: 2}\n"
    (tmp_path / "mine.yaml").write_text(own)
    with pytest.raises(SpaceError, match=r"found habits in 'mine.yaml', accepted .* framework"):
        load(SPACE)
