"""A loaded space: parameters, conditions, canonical configurations, facts, fingerprint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from foundation.documents import parse_document, plain_scalar
from search_spaces import SearchSpace, SpaceError
from support.broken_rules import broken_rules
from trainer.plan.config import TrainConfig

Load = Callable[[str], SearchSpace]


def values(**named: Any) -> dict[str, Any]:
    return named


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("[4, 1, 2]", (4, 1, 2)),
        ("{range: [2, 5]}", (2, 3, 4, 5)),
        ("{range: [2, 9], step: 3}", (2, 5, 8)),
        ("{range: [0.1, 0.3], step: 0.1}", (0.1, 0.2, 0.3)),
        ("{range: [3, 3]}", (3,)),
        ("{log2: [2, 16]}", (2, 4, 8, 16)),
        ("{log2: [1, 1]}", (1,)),
        ("[true, false]", (True, False)),
        ("true", (True,)),
        ("7", (7,)),
        ("fast", ("fast",)),
        ("[fast, slow]", ("fast", "slow")),
        ("['1', '2']", ("1", "2")),
        ("[1, 2.5]", (1.0, 2.5)),
        ("[on, off]", ("on", "off")),
        ("[1e-3, 2e-3]", (0.001, 0.002)),
        ("[1_000, 2_000]", (1000, 2000)),
    ],
)
def test_a_parameter_has_the_values_that_its_spec_names(
    load: Load, own_trainer: str, spec: str, expected: tuple[Any, ...]
) -> None:
    got = load(own_trainer.replace("zero: [a, b]", f"zero: {spec}")).parameters["zero"].values
    assert got == expected
    assert [type(v) for v in got] == [type(v) for v in expected]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("20m", 1200), ("1.5h", 5400), ("2 d", 172800)]
)
def test_durations_are_seconds(load: Load, good: str, text: str, seconds: float) -> None:
    assert load(good + f"trial: {{timeout: {text}}}\n").trial.timeout_s == seconds


def test_an_inactive_parameter_counts_once(load: Load, good: str) -> None:
    space = load(good)
    base = {"tp": 2, "mbs": 1, "gas": 4, "sequence_parallel": False, "num_nodes": 1}
    assert space.first_violation({**base, "pp": 1, "vpp": 1}) is None
    found = space.first_violation({**base, "pp": 1, "vpp": 2})
    assert found is not None and found.startswith("inactive_vpp: vpp only where pp > 1")
    assert "vpp" not in space.canonical({**base, "pp": 1, "vpp": 1})
    assert space.canonical({**base, "pp": 2, "vpp": 2})["vpp"] == 2


def test_raw_fills_in_what_canonical_leaves_out(load: Load, good: str) -> None:
    space = load(good)
    raw = values(tp=2, pp=1, vpp=1, mbs=1, gas=4, sequence_parallel=True, num_nodes=1)
    canonical = space.canonical(raw)
    assert space.raw(canonical) == raw
    assert space.canonical(canonical) == canonical
    assert space.raw({**canonical, "vpp": None}) == raw


def test_an_inactive_parameter_has_the_trainers_default(load: Load, good: str) -> None:
    space = load(good.replace("vpp: [1, 2]", "vpp: [2, 4]"))
    base = values(tp=1, mbs=1, gas=4, sequence_parallel=False, num_nodes=1)
    assert space.facts({**base, "pp": 1})["vpp"] == 1
    assert space.facts({**base, "pp": 2, "vpp": 4})["vpp"] == 4
    assert space.first_violation({**base, "pp": 1}) is None
    assert "vpp" not in space.train_config({**base, "pp": 1}, "x")


CHAIN = """\
version: 1
cluster: dgx_h100
trainer: {command: [train, "{inner}"]}
parameters: {top: [0, 1], middle: [0, 1], inner: [5, 6]}
conditions: {inner: middle == 0, middle: top == 1}
constraints: [inner == 6]
objective: {maximize: speed}
"""


def test_a_child_of_an_inactive_parameter_is_inactive(load: Load) -> None:
    space = load(CHAIN)
    # middle is pinned to 0 where top is 0; inner's condition reads so, but middle does not count.
    assert space.canonical({"top": 0, "middle": 0, "inner": 5}) == {"top": 0}
    assert space.canonical({"top": 1, "middle": 0, "inner": 6}) == values(top=1, middle=0, inner=6)


def test_a_constraint_on_an_inactive_parameter_without_default_holds(load: Load) -> None:
    space = load(CHAIN)
    assert space.first_violation({"top": 0}) is None
    found = space.first_violation({"top": 1, "middle": 0, "inner": 5})
    assert found == "constraint_1: inner == 6 (inner 5)"
    assert space.command({"top": 0}, "d") == ("train", "5")


def test_rules_take_a_data_frame(load: Load, good: str) -> None:
    space = load(good)
    rows = [
        values(tp=2, pp=1, vpp=1, mbs=1, gas=4, sequence_parallel=True, num_nodes=1),
        values(tp=1, pp=1, vpp=1, mbs=1, gas=4, sequence_parallel=True, num_nodes=1),
        values(tp=4, pp=4, vpp=1, mbs=1, gas=4, sequence_parallel=True, num_nodes=1),
    ]
    frame = pd.DataFrame(rows)
    assert space.valid(frame).tolist() == [True, False, False]
    assert space.valid(frame.astype(object)).tolist() == [True, False, False]
    broken = broken_rules(space, frame)
    assert broken["sequence_parallel_needs_tp"].tolist() == [False, True, False]
    assert broken["world_by_tp_pp"].tolist() == [False, False, True]
    assert space.valid(frame.iloc[:0]).shape == (0,)


def test_configurations_come_back_in_plain_types(load: Load, good: str) -> None:
    space = load(good)
    raw = values(tp=np.int64(2), pp=np.float64(2.0), vpp=2, mbs=1, gas=4, num_nodes=1)
    raw["sequence_parallel"] = np.bool_(True)
    config = space.canonical(raw)
    assert {type(v) for v in config.values()} == {int, bool}
    assert type(config["pp"]) is int


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tp": 3}, "tp: found 3, accepted 1, 2, 4"),
        ({"tp": True}, "tp: found true, accepted 1, 2, 4"),
        ({"tp": None}, "tp: missing"),
        ({"tpp": 1}, "tpp: not a parameter of this space"),
        ({"sequence_parallel": 1}, "sequence_parallel: found 1, accepted false, true"),
    ],
)
def test_a_configuration_outside_the_space_says_why(
    load: Load, good: str, change: dict[str, Any], said: str
) -> None:
    base = values(tp=2, pp=1, vpp=1, mbs=1, gas=4, sequence_parallel=True, num_nodes=1)
    assert load(good).first_violation({**base, **change}) == said


def test_facts_hold_what_follows_from_a_configuration(load: Load, good: str) -> None:
    space = load(good.replace("num_nodes: 1", "num_nodes: [1, 2]"))
    config = values(tp=2, pp=2, vpp=1, mbs=3, gas=4, sequence_parallel=True, num_nodes=2)
    facts = space.facts(config)
    expected = values(world_size=16, dp=4, global_batch_size=48, gpus_per_node=8, memory_gib=80)
    assert {name: facts[name] for name in expected} == expected
    assert facts["num_layers"] == space.model.num_layers  # type: ignore[union-attr]
    assert facts["num_parameters"] == space.model.num_parameters  # type: ignore[union-attr]
    assert (space.num_nodes(config), space.facts(config)["world_size"]) == (2, 16)


def test_the_trainers_configuration_is_one_that_it_accepts(load: Load, good: str) -> None:
    space = load(good + "trial: {warmup_steps: 1, measured_steps: 3}\n")
    config = values(tp=2, pp=2, vpp=2, mbs=3, gas=4, sequence_parallel=True, num_nodes=1)
    train = TrainConfig.parse(space.train_config(config, "some/prefix"))
    assert (train.tp, train.vpp, train.sequence_parallel, train.precision) == (2, 2, True, "fp32")
    assert (train.data, train.steps, train.model) == ("some/prefix", 4, space.model)


def test_files_of_the_trainers_are_named_from_where_the_search_starts(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks start in the trial's folder."""
    monkeypatch.chdir(tmp_path)
    own = "loss_mask: m, validation: {data: v}, initial_load_path: /w"
    text = (
        "version: 1\nmodel: tiny\ncluster: tiny_cpu\n"
        f"trainer: {{builtin: {{data: x, {own}}}}}\n"
        "parameters: {tp: [1, 2]}\nobjective: {maximize: tokens_per_second}\n"
    )
    train = TrainConfig.parse(load(text).train_config({"tp": 1}, "x"))
    assert train.validation is not None and train.validation.data == str(tmp_path / "v")
    assert (train.loss_mask, train.initial_load_path) == (str(tmp_path / "m"), "/w")


@pytest.mark.parametrize(
    ("cluster", "asked", "device"),
    [
        ("dgx_h100", None, "cuda"),
        ("frontier", "auto", "cuda"),
        ("dgx_h100", "cpu", "cpu"),
        ("tiny_cpu", None, "cpu"),
        ("{name: c, gpus_per_node: 8, memory_gib: 8, peak_fp32_tflops: 1}", None, None),
    ],
)
def test_a_device_that_the_space_leaves_open_is_the_clusters(
    load: Load, cluster: str, asked: str | None, device: str | None
) -> None:
    builtin = "{data: x" + (f", device: {asked}" if asked else "") + "}"
    text = (
        f"version: 1\nmodel: tiny\ncluster: {cluster}\ntrainer: {{builtin: {builtin}}}\n"
        "parameters: {tp: [1, 2]}\nobjective: {maximize: tokens_per_second}\n"
    )
    assert load(text).train_config({"tp": 1}, "x").get("device") == device


def test_a_command_is_filled_in_argument_by_argument(load: Load, own_trainer: str) -> None:
    text = own_trainer.replace(
        '"{tp}"', "'{tp}', '{dp}x{world_size}', '{{tp}}', '{\"a\": {tp}}', '$(id); {zero}'"
    )
    assert load(text).command({"tp": 4, "zero": "a"}, "/runs/1") == (
        *("python", "train.py", "--tp", "4", "2x8", "{tp}", '{"a": 4}', "$(id); a"),
        *("--out", "/runs/1/result.json"),
    )


def test_true_is_written_in_lower_case_in_a_command(load: Load, own_trainer: str) -> None:
    text = own_trainer.replace("zero: [a, b]", "zero: [true, false]").replace('"{tp}"', '"{zero}"')
    assert load(text).command({"tp": 4, "zero": False}, "d")[3] == "false"


def test_goals_that_this_machine_cannot_measure_are_named(load: Load, good: str) -> None:
    assert load(good).unmeasured() == ""
    energy = load(good.replace("maximize: tflops_per_gpu", "minimize: joules_per_token"))
    if why := energy.unmeasured():  # this machine has no counter
        assert why.startswith("joules_per_token: no counter of energy (pm_counters: no ")


def test_money_and_carbon_need_the_sites_prices(load: Load, good: str) -> None:
    for key, price in (("cost", "price_per_node_hour"), ("co2", "co2_grams_per_kwh")):
        text = good.replace("maximize: tflops_per_gpu", f"minimize: {key}")
        with pytest.raises(
            SpaceError, match=rf"found {key}, accepted with {price}.* under cluster"
        ):
            load(text)


def test_a_frozen_space_has_the_same_fingerprint(load: Load, good: str, own_trainer: str) -> None:
    for text in (good, own_trainer, CHAIN):
        space = load(text)
        again = load(space.frozen())
        assert again.fingerprint == space.fingerprint
        assert again.frozen() == space.frozen()
        assert again.parameters == space.parameters
        assert again.name == space.name


@settings(max_examples=40)
@given(words=st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=4, unique=True))
def test_any_text_survives_freezing(load: Load, words: list[str]) -> None:
    import json

    quoted = json.dumps(words)
    text = CHAIN.replace("inner: [5, 6]}", f"inner: [5, 6], word: {quoted}}}")
    try:
        space = load(text)
    except SpaceError:  # a character that YAML does not have
        return
    assert load(space.frozen()).parameters["word"].values == space.parameters["word"].values


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("objective:", "budget: {trials: 9}\nobjective:", True),
        ("objective:", "description: words\nobjective:", True),
        ("model: tiny", "# why\nmodel: tiny", True),
        ("log2: [1, 4]}", "log2: [1, 4] }", True),
        ("pp: {log2: [1, 4]}", "pp: [1, 2, 4]", True),
        ("tp: [1, 2, 4]", "tp: [1, 2]", False),
        ("model: tiny", "model: gpt_1_4b", False),
        ("dgx_h100", "dgx_a100", False),
        ("precision: fp32", "precision: bf16", False),
        ("vpp: pp > 1", "vpp: pp > 2", False),
        ("size <= 64", "size <= 65", False),
        ("maximize", "minimize", False),
        ("maximize: tflops_per_gpu", "[maximize: tflops_per_gpu, minimize: dp]", False),
        ("objective:", "trial: {timeout: 5m}\nobjective:", False),
        ("objective:", "failure_penalty: mean\nobjective:", False),
        ("objective:", "allow: [tp_across_nodes]\nobjective:", False),
    ],
)
def test_the_fingerprint_changes_with_the_search_and_not_with_the_prose(
    load: Load, good: str, old: str, new: str, same: bool
) -> None:
    assert old in good
    assert (load(good).fingerprint == load(good.replace(old, new, 1)).fingerprint) == same


def test_several_objectives_are_kept_in_order_when_frozen(load: Load, good: str) -> None:
    sought = "[minimize: step_time_s.median, maximize: tflops_per_gpu, minimize: energy_joules]"
    space = load(good.replace("maximize: tflops_per_gpu", sought))
    keys = ["step_time_s.median", "tflops_per_gpu", "energy_joules"]
    assert [objective.key for objective in space.objectives] == keys
    assert [objective.maximize for objective in space.objectives] == [False, True, False]
    again = load(space.frozen())
    assert again.fingerprint == space.fingerprint and again.objectives == space.objectives
    other = load(good.replace("maximize: tflops_per_gpu", sought.replace("median, ", "p95, ")))
    assert other.fingerprint != space.fingerprint


def test_the_name_of_a_space_is_its_files_unless_given(load: Load, good: str) -> None:
    assert load(good).name == "space"
    assert load("name: mine\n" + good).name == "mine"


@settings(max_examples=150)
@given(st.data())
def test_a_damaged_file_loads_or_is_refused(load: Load, good: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(good)))
    length = data.draw(st.integers(0, 12))
    piece = data.draw(
        st.text(alphabet="ab01.:-[]{}&*!|>'\"%@`#,?~ \n\t<=", max_size=12)
        | st.sampled_from(["null", "true", "-1", "1e99", ".nan", "[]", "{}", "tp", "  - x\n"])
    )
    try:
        load(good[:start] + piece + good[start + length :])
    except SpaceError as error:
        assert "space.yaml" in str(error)


@pytest.mark.parametrize(
    ("text", "value"),
    [("012", 12), ("-3", -3), ("1.", 1.0), (".5", 0.5), ("1e3", 1000.0), ("yes", "yes"),
     ("12:30", "12:30"), ("2024-01-01", "2024-01-01"), ("0x10", "0x10"), ("", None), ("~", None)],
)  # fmt: skip
def test_plain_scalars_are_read_by_yaml_1_2(text: str, value: Any) -> None:
    assert plain_scalar(text) == value and type(plain_scalar(text)) is type(value)
    assert parse_document(f"key: {text}", "f").root.plain() == {"key": value}
