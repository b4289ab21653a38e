"""A global batch among the parameters, and notes on one that is free."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from search_spaces import SearchSpace, SpaceError, load_space, notes

Load = Callable[[str], SearchSpace]

OWN = """\
version: 1
model: llama_8b
cluster: dgx_h100
trainer: {command: [python, train.py, "{tp}", "{mbs}", "{gas}", "{num_nodes}"]}
parameters: {num_nodes: 2, tp: [1, 2, 4], mbs: [1, 2, 3], global_batch_size: 96}
objective: {maximize: tokens_per_second}
"""


def batches(space: SearchSpace) -> dict[int, set[tuple[int, ...]]]:
    """Valid (tp, mbs) by their global batch."""
    found: dict[int, set[tuple[int, ...]]] = {}
    names = list(space.parameters)
    for values in product(*(parameter.values for parameter in space.parameters.values())):
        config = dict(zip(names, values, strict=True))
        if space.first_violation(config) is None:
            size = int(space.facts(config)["global_batch_size"])
            found.setdefault(size, set()).add((int(config["tp"]), int(config["mbs"])))
    return found


@pytest.mark.parametrize(("given", "sizes"), [("96", [96]), ("[96, 20]", [96, 20])])
def test_gas_follows_from_a_global_batch_among_the_parameters(
    load: Load, given: str, sizes: list[int]
) -> None:
    space = load(OWN.replace("size: 96", f"size: {given}"))
    possible = {
        size: {(tp, mbs) for tp in (1, 2, 4) for mbs in (1, 2, 3) if size % (mbs * 16 // tp) == 0}
        for size in sizes
    }
    assert batches(space) == possible


def test_a_global_batch_of_the_space_replaces_the_one_in_the_arguments(load: Load) -> None:
    trainer = "{adapter: megatron-lm, entry: a.py, args: --global-batch-size 512}"
    space = load(
        OWN.replace(
            '{command: [python, train.py, "{tp}", "{mbs}", "{gas}", "{num_nodes}"]}', trainer
        )
    )
    assert set(batches(space)) == {96}


def test_the_built_in_trainer_takes_a_global_batch_beside_a_fixed_micro_batch(
    load: Load, good: str
) -> None:
    text = good.replace("  gas: {range: [2, 8], step: 2}", "  global_batch_size: 24")
    assert set(batches(load(text))) == {24}


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("size: 96", "size: 2.5", "key 'parameters.global_batch_size': found 2.5, accepted"),
        ("size: 96", "size: [0, 8]", "accepted up to 32 positive whole numbers"),
        ("mbs: [1, 2, 3], ", "", "needs mbs among the parameters"),
    ],
)
def test_an_impossible_global_batch_is_told(
    load: Load, before: str, after: str, complaint: str
) -> None:
    text = OWN.replace(', "{mbs}"', "") if not after else OWN
    with pytest.raises(SpaceError, match=complaint.replace("[", r"\[")):
        load(text.replace(before, after))


@pytest.mark.parametrize(
    ("parameters", "objective", "told"),
    [
        ("num_nodes: 2, mbs: 1, gas: [1, 8]", "{maximize: tokens_per_second}", "largest: gas"),
        ("num_nodes: 2, mbs: 1, gas: [1, 8]", "{minimize: step_time_s.median}", "smallest: gas"),
        ("num_nodes: 2, mbs: 1, gas: [1, 8]", "{minimize: val_loss}", None),
        ("num_nodes: 2, mbs: [1, 2], gas: 8", "{maximize: tokens_per_second}", None),
        ("num_nodes: [1, 2], mbs: 1, gas: 8", "{maximize: tokens_per_second}", "most nodes"),
        ("num_nodes: [1, 2], mbs: 1, gas: 8", "{maximize: tokens_per_second_per_gpu}", None),
        (
            "num_nodes: [1, 2], mbs: 1, gas: 8",
            "[maximize: tokens_per_second, minimize: num_nodes]",
            None,
        ),
    ],
)
def test_a_free_batch_or_node_count_that_decides_the_objective_is_told(
    load: Load, parameters: str, objective: str, told: str | None
) -> None:
    text = OWN.replace(
        "num_nodes: 2, tp: [1, 2, 4], mbs: [1, 2, 3], global_batch_size: 96",
        f"tp: [1, 2], {parameters}",
    )
    text = text.replace("{maximize: tokens_per_second}", objective)
    found = [note for note in notes(load(text)) if "is free" in note]
    assert [told in note for note in found] == [True] if told else found == []


@pytest.mark.parametrize(
    ("objective", "told"),
    [
        ("{minimize: tokens_per_second}", "looks for the worst: maximize it"),
        ("{maximize: step_time_s.median}", "looks for the worst: minimize it"),
        ("[maximize: tokens_per_second, maximize: val_loss]", "maximize: val_loss looks for"),
        ("{maximize: tokens_per_second_per_gpu}", None),
        ("[minimize: step_time_s.median, minimize: node_seconds_per_token]", None),
        # a user's own, which may mean anything
        ("[minimize: wasted_tokens_per_second, minimize: tokens_per_second_std]", None),
        ("[minimize: lost_samples_per_second, minimize: idle_tflops]", None),
        ("[maximize: accuracy_per_token, maximize: exp_of_minus_loss]", None),
    ],
)
def test_the_wrong_direction_is_told(load: Load, objective: str, told: str | None) -> None:
    text = OWN.replace("{maximize: tokens_per_second}", objective)
    found = [note for note in notes(load(text)) if "worst" in note]
    assert [told in note for note in found] == [True] if told else found == []


def test_a_constraint_on_the_batch_is_no_free_batch(load: Load) -> None:
    text = OWN.replace("global_batch_size: 96", "gas: [1, 2, 4]")
    assert any("is free" in note for note in notes(load(text)))
    text += "constraints: [mbs * gas * dp == 96]\n"
    assert not any("is free" in note for note in notes(load(text)))


@pytest.mark.parametrize("name", ["tiny_cpu", "llama_8b_dgx_h100", "gpt_1t_frontier"])
def test_shipped_spaces_leave_no_batch_free(name: str) -> None:
    assert not any("is free" in note for note in notes(load_space(name)))
