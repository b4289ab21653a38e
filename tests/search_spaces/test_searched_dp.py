"""``dp`` as a parameter of a trainer of one's own: the degrees' product is the world."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from analysis.prediction.pricing import Pricing
from search_spaces import Candidates, SearchSpace, SpaceError, check

Load = Callable[[str], SearchSpace]

SPACE = """
version: 1
model: llama_8b
cluster: dgx_h100
trainer: {command: [train, "{tp}", "{dp}"]}
parameters: {NODEStp: [1, 2, 4, 8], dp: [1, 2, 4, 8, 16], mbs: 1, gas: [1, 2]}
objective: {maximize: tokens_per_second}
"""


def configs(space: SearchSpace) -> list[dict[str, object]]:
    return Candidates(space).draw(1000, np.random.default_rng(0), [], 1000)


def test_nodes_that_are_searched_leave_the_degrees_that_fill_them(load: Load) -> None:
    space = load(SPACE.replace("NODES", "num_nodes: [1, 2, 4], "))
    valid = configs(space)
    assert {(c["num_nodes"], c["tp"], c["dp"]) for c in valid} == {
        (n, tp, dp) for n in (1, 2, 4) for tp in (1, 2, 4, 8) for dp in (1, 2, 4, 8, 16)
        if tp * dp == 8 * n
    }  # fmt: skip
    assert check(space).valid == len(valid)
    broken = space.first_violation({"num_nodes": 1, "tp": 2, "dp": 2, "mbs": 1, "gas": 1})
    assert broken and broken.startswith("degrees_make_world: tp * dp * pp == world_size")


def test_nodes_that_are_not_searched_are_as_many_as_the_degrees_need(load: Load) -> None:
    space = load(SPACE.replace("NODES", ""))
    valid = configs(space)
    assert {(c["tp"], c["dp"]) for c in valid} == {
        (tp, dp) for tp in (1, 2, 4, 8) for dp in (1, 2, 4, 8, 16) if tp * dp % 8 == 0
    }
    config = {"tp": 8, "dp": 4, "mbs": 1, "gas": 2}
    facts = space.facts(config)
    assert (facts["num_nodes"], facts["world_size"], facts["global_batch_size"]) == (4, 32, 8)
    assert space.num_nodes(config) == 4 and space.widths[-1] == 16
    narrow = Candidates(space).draw(1000, np.random.default_rng(0), [], 2)
    assert {space.num_nodes(c) for c in narrow} == {1, 2}


def test_the_cost_model_prices_it_as_if_dp_had_been_derived(load: Load) -> None:
    searched = load(SPACE.replace("NODES", ""))
    derived = load(
        SPACE.replace("NODES", "num_nodes: [4], ")
        .replace("dp: [1, 2, 4, 8, 16], ", "")
        .replace('"{dp}"', '"{mbs}"')
    )
    one = Pricing(searched).predict([{"tp": 8, "dp": 4, "mbs": 1, "gas": 2}])
    other = Pricing(derived).predict([{"tp": 8, "num_nodes": 4, "mbs": 1, "gas": 2}])
    assert one.step_time_s[0] == other.step_time_s[0]
    assert one.peak_bytes[0] == other.peak_bytes[0]


def test_only_whole_numbers_and_only_a_trainer_of_ones_own(load: Load, good: str) -> None:
    with pytest.raises(SpaceError, match=r"'parameters.dp\[0\]'"):
        load(SPACE.replace("NODES", "").replace("dp: [1,", "dp: [0,"))
    with pytest.raises(SpaceError, match="is derived from the others"):
        load(good.replace("  tp: [1, 2, 4]", "  tp: [1, 2, 4]\n  dp: [1, 2]"))
