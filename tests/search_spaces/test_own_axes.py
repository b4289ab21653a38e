"""A parallel axis that only one's own trainer knows: a space is all that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import yaml

from analysis.prediction.pricing import NotPricedError, Pricing
from analysis.prediction.ranking import Ranking, search_warnings
from search_spaces import SearchSpace, SpaceError, check, load_space
from search_spaces.points.candidates import Candidates

Load = Callable[[str], SearchSpace]


def text(axes: Any = ("cp",), **parameters: Any) -> str:
    return yaml.safe_dump(
        {
            "version": 1,
            "model": "llama_8b",
            "cluster": "dgx_h100",
            "trainer": {"command": ["train", "--cp={cp}", "--dp={dp}"], "axes": list(axes)},
            "parameters": {
                "num_nodes": [1, 2],
                "tp": [1, 2, 4, 8],
                "cp": [1, 2, 3, 4],
                "pp": [1, 2],
                "mbs": 1,
                "gas": 8,
                "zero_stage": 1,
                **parameters,
            },
            "objective": {"maximize": "tokens_per_second"},
        }
    )


def test_the_ranks_are_the_product_of_all_axes(load: Load) -> None:
    space = load(text())
    rows = Candidates(space).draw(1000, np.random.default_rng(0), [], 8)
    assert len(rows) == check(space).valid
    for row in rows:
        facts = space.facts(row)
        assert facts["tp"] * facts["cp"] * facts["pp"] * facts["dp"] == facts["world_size"]
        assert facts["global_batch_size"] == 8 * facts["dp"]


def test_a_configuration_that_leaves_no_whole_replicas_is_removed_by_a_rule_that_says_so(
    load: Load,
) -> None:
    space = load(text())
    config = {"num_nodes": 1, "tp": 2, "cp": 3, "pp": 1, "mbs": 1, "gas": 8, "zero_stage": 1}
    assert space.first_violation(config) == (
        "world_by_tp_cp_pp: world_size % (tp * cp * pp) == 0 (cp 3, pp 1, tp 2, world_size 8)"
    )
    assert "world_by_tp_pp" not in {rule.name for rule in space.rules}


def test_the_command_has_the_degree_and_the_replicas_that_it_leaves(load: Load) -> None:
    config = {"num_nodes": 2, "tp": 2, "cp": 4, "pp": 1, "mbs": 1, "gas": 8, "zero_stage": 1}
    assert load(text()).command(config, "d") == ("train", "--cp=4", "--dp=2")


def test_an_axis_that_is_inactive_counts_as_one(load: Load) -> None:
    content = yaml.safe_load(text()) | {"conditions": {"cp": "num_nodes > 1"}}
    space = load(yaml.safe_dump(content))
    config = {"num_nodes": 1, "tp": 2, "pp": 1, "mbs": 1, "gas": 8, "zero_stage": 1}
    assert space.facts(config)["dp"] == 4


def test_a_degree_that_the_cost_model_does_not_know_is_never_priced(load: Load) -> None:
    space = load(text(["cp", "sp"], sp=[1, 2]).replace("--cp={cp}", "--cp={cp}/{sp}"))
    known = "cannot price the parallel axis sp: it knows tp, cp, dp, pp"
    with pytest.raises(NotPricedError, match=known):
        Pricing(space)
    assert known in Ranking.likely_to_fit(check(space))
    assert any("axis sp" in line for line in search_warnings(space, Pricing.of(space)))


def test_context_parallelism_is_an_axis_even_if_nobody_says_so(load: Load) -> None:
    space = load(text([]))
    assert space.program.axes == ["cp"]
    config = {"num_nodes": 1, "tp": 2, "cp": 4, "pp": 1, "mbs": 1, "gas": 8, "zero_stage": 1}
    assert space.facts(config)["dp"] == 1
    assert load(space.frozen()).fingerprint == load(text(["cp"])).fingerprint


def test_context_parallelism_splits_the_sequence_and_not_the_batch(load: Load) -> None:
    """Twice cp and half dp: half of the batch, with the same states and half of the activations."""
    pricing = Pricing(load(text(zero_stage=1, num_nodes=1)))
    config = {"num_nodes": 1, "tp": 2, "pp": 1, "mbs": 1, "gas": 8, "zero_stage": 1}
    plain, split = (pricing.predict([{**config, "cp": cp}]) for cp in (1, 2))
    assert plain.jobs.global_batch / split.jobs.global_batch == 2
    assert plain.memory.optimizer == split.memory.optimizer
    assert plain.memory.activations / split.memory.activations == pytest.approx(2)
    assert split.time.context > 0 == plain.time.context
    # Not four times the tokens per second for the same work, and hardly fewer.
    assert 0.7 < (split.tokens_per_second / plain.tokens_per_second)[0] < 1


@pytest.mark.parametrize(
    ("name", "usual"),
    [("tensor_model_parallel_size", "tp"), ("micro_batch_size", "mbs"), ("context_parallel", "cp")],
)
def test_a_frameworks_name_for_a_known_parameter_is_told(load: Load, name: str, usual: str) -> None:
    with pytest.raises(SpaceError, match=rf"parameters.{name}': is {usual} here: rename it"):
        load(text([], **{name: [1, 2]}))


def test_a_degree_of_one_is_priced_as_without_it(load: Load) -> None:
    config = {"num_nodes": 1, "tp": 2, "pp": 1, "mbs": 1, "gas": 8, "zero_stage": 1}
    with_one = Pricing(load(text(cp=1))).predict([{**config, "cp": 1}])
    content = yaml.safe_load(text([]))
    content["trainer"]["command"] = ["train"]
    del content["parameters"]["cp"]
    without = Pricing(load(yaml.safe_dump(content))).predict([config])
    assert with_one.step_time_s == without.step_time_s
    assert with_one.peak_bytes == without.peak_bytes


@pytest.mark.parametrize(
    ("axes", "complaint"),
    [
        (["ep"], "key 'trainer.axes[0]': found ep, accepted parameters of this space"),
        (["cp", "cp"], "found cp twice"),
        (["mbs"], "key 'trainer.axes[0]': found mbs, which is no axis"),
        (["dp"], "found dp, accepted names other than tp, dp, pp"),
    ],
)
def test_an_axis_that_is_no_parameter_or_known_already_is_refused(
    load: Load, axes: list[str], complaint: str
) -> None:
    with pytest.raises(SpaceError) as caught:
        load(text(axes))
    assert complaint in str(caught.value)


def test_the_degrees_of_an_axis_are_whole_numbers(load: Load) -> None:
    with pytest.raises(SpaceError, match="cp"):
        load(text(cp=[1, 0]))
    with pytest.raises(SpaceError, match="cp"):
        load(text(cp=["a", "b"]))


def test_the_built_in_trainer_has_no_axes_but_its_own(load: Load, good: str) -> None:
    with pytest.raises(SpaceError, match="'axes' goes with 'command'"):
        load(good.replace("  builtin:", "  axes: [tp]\n  builtin:"))


def test_the_built_in_trainer_searches_context_parallelism(load: Load, good: str) -> None:
    content = yaml.safe_load(good)
    content["parameters"]["cp"] = [1, 2]
    content["parameters"]["zero_stage"] = [0, 3]
    space = load(yaml.safe_dump(content))
    raw = {name: parameter.values[0] for name, parameter in space.parameters.items()}
    plain, split = (space.facts({**raw, "zero_stage": 3, "cp": cp}) for cp in (1, 2))
    assert split["dp"] == plain["dp"] / 2
    assert split["weight_shard"] == plain["weight_shard"] == plain["dp"]
    assert load(space.frozen()).fingerprint == space.fingerprint
    assert space.train_config({**raw, "cp": 2}, data="tokens")["cp"] == 2


def test_a_space_without_such_axes_is_what_it_was(load: Load) -> None:
    content = yaml.safe_load(text([], sp=1))
    del content["parameters"]["cp"]
    content["trainer"]["command"] = ["train", "{sp}"]
    without = load(yaml.safe_dump(content))
    content["trainer"]["axes"] = ["sp"]
    named = load(yaml.safe_dump(content))
    assert named.fingerprint != without.fingerprint
    assert "axes" not in without.frozen() and load(named.frozen()).trainer.axes == ["sp"]
    assert load_space("gpt_22b_frontier").trainer.axes == []


def test_a_degree_that_splits_no_ranks_is_searched_beside_the_prices_and_said(load: Load) -> None:
    content = yaml.safe_load(text(["cp"], ep=[1, 2, 4]))
    content["trainer"]["command"].append("--ep={ep}")
    space = load(yaml.safe_dump(content))
    note = "the cost model sees no difference between values of ep"
    assert note in Ranking.likely_to_fit(check(space))
    assert any(note in line for line in search_warnings(space, Pricing.of(space)))
    assert note not in Ranking.likely_to_fit(check(load(text())))
