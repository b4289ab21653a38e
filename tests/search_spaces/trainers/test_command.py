"""The command of a user's own trainer: expressions, flags, and what it does not depend on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from search_spaces import SearchSpace, SpaceError, check, notes
from search_spaces.trainers import templates

Load = Callable[[str], SearchSpace]
SPACE = """\
version: 1
cluster: dgx_h100
trainer:
  command: {command}
parameters:
  tp: [1, 2, 4]
  pp: [1, 2]
  mbs: [1, 2]
  flag: [true, false]
  extra: ["", --fused]
objective: {{minimize: seconds}}
"""
CONFIG = {"tp": 2, "pp": 1, "mbs": 1, "flag": True, "extra": ""}


def test_a_value_is_filled_in_as_python_writes_it_and_not_as_it_is_shown() -> None:
    assert templates.filled("{x} {y}", {"x": None, "y": True}) == "None true"  # type: ignore[dict-item]


def test_expressions_are_computed_and_json_is_left_alone(load: Load) -> None:
    space = load(SPACE.format(command="""[train, "--dp={dp // 2}", "{mbs * 4}", "{dp / 8}",
        '{"stage": 1, "x": {"y": 2}}', "{{tp}}", "a{1}", "{flag}", "{pp == 1}"]"""))  # fmt: skip
    assert space.command(CONFIG, "/t") == (
        "train", "--dp=2", "4", "0.5", '{"stage": 1, "x": {"y": 2}}', "{tp}", "a{1}", "true", "true"
    )  # fmt: skip


def test_a_list_is_an_argument_of_its_own_and_the_star_can_be_literal(load: Load) -> None:
    space = load(SPACE.format(command="""[train, "{*tp}", "{*tp}x", "{{*tp}}", "{*.py}"]"""))
    assert space.command(CONFIG, "/t") == ("train", "2", "2x", "{*tp}", "{*.py}")
    many = {"a": "p,q"}
    assert templates.arguments(["{*a}", "{*a}x", "{{*a}}"], many) == ["p", "q", "p,qx", "{*a}"]
    assert templates.value("{*a}", many) == ["p", "q"]
    assert templates.value("{*a}x", many) == "p,qx"
    with pytest.raises(SpaceError, match=r"unknown placeholder \{\*b\}.* written \{\{\*b\}\}"):
        load(SPACE.format(command="""[train, "{*b}", "{tp}"]"""))


def test_flags_are_there_where_their_expression_is_true(load: Load) -> None:
    space = load(SPACE.format(command="""[train, {when: flag and tp > 1, args: [--sp, "{tp}"]},
        {when: not flag, args: [--no-sp]}, --last]"""))  # fmt: skip
    assert space.command(CONFIG, "/t") == ("train", "--sp", "2", "--last")
    assert space.command(CONFIG | {"flag": False}, "/t") == ("train", "--no-sp", "--last")


def test_an_argument_that_only_stands_for_an_empty_value_is_left_out(load: Load) -> None:
    space = load(SPACE.format(command='[train, "{extra}", "", "x={extra}"]'))
    assert space.command(CONFIG, "/t") == ("train", "", "x=")
    assert space.command(CONFIG | {"extra": "--fused"}, "/t") == (
        "train",
        "--fused",
        "",
        "x=--fused",
    )


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ('[train, "{dp // cpp}"]', "unknown name 'cpp'"),
        ('[train, "{dp // flag}"]', "found true or false, accepted a number"),
        ("[train, {when: tp, args: [x]}]", "found a number, accepted an expression that is true"),
        ("[train, {when: flag, args: ['{nothing}']}]", "unknown placeholder {nothing}"),
        ("[train, {when: flag}]", "'args'"),
        ("[train, {args: [x]}]", "'when'"),
        ('[train, "${HOME}"]', "unknown placeholder {HOME}"),
    ],
)
def test_what_cannot_be_filled_in_is_told_with_its_place(
    load: Load, command: str, told: str
) -> None:
    with pytest.raises(SpaceError) as error:
        load(SPACE.format(command=command))
    assert told in str(error.value)
    assert "space.yaml:4:" in str(error.value)


def test_a_division_by_zero_names_the_expression(load: Load) -> None:
    space = load(SPACE.format(command='[train, "{dp // (tp - 2)}"]'))
    with pytest.raises(SpaceError, match=r"trainer.command: dp // \(tp - 2\): divides by zero"):
        space.command(CONFIG, "/t")


def test_parameters_that_the_command_does_not_depend_on_are_told(load: Load) -> None:
    space = load(SPACE.format(command='[train, "{tp}", "{dp}", {when: flag, args: [--sp]}]'))
    # pp is in dp.
    assert space.unused() == ["mbs", "extra"]
    assert [note for note in check(space).notes if "does not depend on mbs" in note]


@pytest.mark.parametrize(
    ("framework", "told"), [("megatron", "did you mean 'megatron-lm'?"), ("megatron-lm", None)]
)
def test_a_framework_without_a_record_is_welcome_and_said_once(
    load: Load, framework: str, told: str | None
) -> None:
    space = load(STAGES.format(framework=framework, allow="[]"))
    notes = [note for note in check(space).notes if "no record of the framework" in note]
    assert len(notes) == (told is not None)
    assert all((told or "") in note for note in notes)


@pytest.mark.parametrize("command", ["[train, config.json]", '[train, --dir, "{trial_dir}"]'])
def test_a_command_that_may_read_the_trials_files_may_depend_on_all(
    load: Load, command: str
) -> None:
    assert load(SPACE.format(command=command)).unused() == []


STAGES = """\
version: 1
model: gpt_22b
cluster: dgx_h100
trainer: {{framework: {framework}, command: [train, "{{tp}}", "{{pp}}", "{{mbs}}"]}}
parameters: {{num_nodes: 9, tp: 8, pp: [1, 9], mbs: 1, gas: 16}}
objective: {{minimize: step_time_s.median}}
allow: {allow}
"""


@pytest.mark.parametrize(
    ("framework", "allow"),
    [("megatron-lm", "[]"), ("megatron-lm", "[uneven_layers]"), ("nanotron", "[]")],
)
def test_stages_may_differ_where_the_framework_or_the_space_says_so(
    load: Load, framework: str, allow: str
) -> None:
    space = load(STAGES.format(framework=framework, allow=allow))
    names = {rule.name for rule in space.rules}
    uneven = framework == "nanotron" or "uneven" in allow
    assert ("layers_by_stages" in names) is not uneven
    assert "layers_for_stages" in names
    config = {"num_nodes": 9, "tp": 8, "pp": 9, "mbs": 1, "gas": 16}
    assert (space.first_violation(config) is None) is uneven


def test_the_built_in_trainers_stages_are_alike(load: Load, good: str) -> None:
    with pytest.raises(SpaceError, match=r"found uneven_layers, accepted with a command"):
        load(good + "allow: [uneven_layers]\n")


def test_a_script_that_is_not_here_is_noted(load: Load, tmp_path: Path) -> None:
    (tmp_path / "there.py").touch()
    command = (
        f"[python, {tmp_path}/there.py, {tmp_path}/gone.py, '{{tp}}{{pp}}{{mbs}}{{flag}}{{extra}}']"
    )
    told = list(notes(load(SPACE.format(command=command))))
    assert [note for note in told if "gone.py on this machine" in note]
    assert not [note for note in told if "there.py" in note]
