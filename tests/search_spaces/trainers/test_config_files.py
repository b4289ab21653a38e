"""Files that a trainer is configured by: a base, with a trial's values set in it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from search_spaces import SearchSpace, SpaceError, notes

Load = Callable[[str], SearchSpace]
SPACE = """\
version: 1
cluster: dgx_h100
trainer:
  command: [train, --config, run.toml]
  files:
    run.toml: {base: base.toml, set: {parallelism.tp: "{tp}", "steps": "{measured_steps}", lr: 0.1}}
    ds.json:
      content: {bf16: {enabled: true}, list: [{x: 1}, {x: 2}]}
      set: {zero.stage: "{zero}", list.1.x: "{tp * 2}", name: "tp-{tp}", deep: {a: ["{flag}"]}}
    sub/more.yaml: {set: {a.b: "{dp // tp}"}}
parameters: {tp: [1, 2], zero: [1, 3], flag: [true, false]}
objective: {minimize: seconds}
"""
CONFIG = {"tp": 2, "zero": 3, "flag": False}


@pytest.fixture(autouse=True)
def base(tmp_path: Path) -> Path:
    file = tmp_path / "base.toml"
    file.write_text('name = "ümlaut"\n[parallelism]\ntp = 8\npp = 1\n')
    return file


def test_values_keep_their_type_and_the_rest_of_the_base_stays(load: Load) -> None:
    files = load(SPACE).files(CONFIG, "/t")
    assert tomllib.loads(files["run.toml"]) == {
        "name": "ümlaut", "parallelism": {"tp": 2, "pp": 1}, "steps": 5, "lr": 0.1
    }  # fmt: skip
    assert json.loads(files["ds.json"]) == {
        "bf16": {"enabled": True},
        "list": [{"x": 1}, {"x": 4}],
        "zero": {"stage": 3},
        "name": "tp-2",
        "deep": {"a": [False]},
    }
    assert yaml.safe_load(files["sub/more.yaml"]) == {"a": {"b": 2}}


def test_a_frozen_space_has_the_base_in_it(load: Load, base: Path, tmp_path: Path) -> None:
    space = load(SPACE)
    base.unlink()
    again = load(space.frozen())
    assert again.fingerprint == space.fingerprint
    assert again.files(CONFIG, "/t") == space.files(CONFIG, "/t")


def test_a_parameter_that_only_a_file_has_is_used(load: Load) -> None:
    assert load(SPACE).unused() == []
    assert load(SPACE.replace('zero.stage: "{zero}", ', "")).unused() == ["zero"]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ('"{tp}"', '"{tpp}"', "unknown placeholder {tpp}"),
        ("base.toml", "no.toml", "there is no such file"),
        ("run.toml:", "../run.toml:", "accepted a name inside the trial's folder"),
        ("run.toml:", "config.json:", "accepted a name other than"),
        ("run.toml:", "run.ini:", "ends with one of .json"),
        ("list.1.x", "list.2.x", "2 is no item of a list of 2"),
        ("list.1.x", "bf16.enabled.x", "enabled is true in its base, which has no parts"),
        ("base: base.toml,", "base: base.toml, content: {},", "accepted one of: base, content"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    load: Load, before: str, after: str, told: str
) -> None:
    with pytest.raises(SpaceError) as error:
        load(SPACE.replace(before, after))
    assert told in str(error.value)
    assert "space.yaml:" in str(error.value)


@pytest.mark.parametrize("text", ["[[[", "day = 2020-01-01\n", "x = nan\n"])
def test_a_base_that_cannot_be_used_is_told(load: Load, base: Path, text: str) -> None:
    base.write_text(text)
    with pytest.raises(SpaceError, match=r"base.toml: (not TOML|holds a date)"):
        load(SPACE)


def test_a_key_that_is_nearly_one_of_the_base_is_told_and_a_new_one_is_not(load: Load) -> None:
    assert not [note for note in notes(load(SPACE)) if "did you mean" in note]
    slip = SPACE.replace("lr: 0.1", "lr: 0.1, paralelism.pp: 4")
    (told,) = [note for note in notes(load(slip)) if "did you mean" in note]
    assert told == "run.toml has no paralelism.pp to begin with; did you mean 'parallelism.pp'?"


@pytest.mark.parametrize(("named", "told"), [("run.toml", True), ("{trial_dir}/run.toml", False)])
def test_a_file_that_the_command_would_read_elsewhere_is_told(
    load: Load, named: str, told: bool
) -> None:
    space = load(SPACE.replace("run.toml]", f'"{named}"]\n  workdir: .'))
    note = f"trials start in {space.workdir}: their own run.toml is {{trial_dir}}/run.toml"
    assert (note in notes(space)) == told
