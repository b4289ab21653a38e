"""Layouts of a pipeline: strings that say which layers every stage has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from search_spaces import Export, SearchSpace, SpaceError, check
from trainer.plan.layouts import LayoutError, parsed_layout
from trainer.plan.stages import StageLayers

Load = Callable[[str], SearchSpace]
# DeepSeek-V3's of its report, and a short one of two chunks on each of four ranks.
DEEPSEEK, SHORT = "Et*3|(tt|)*29,m|L", "E|(t|)*6ttL"


@pytest.mark.parametrize(
    ("text", "pp", "layers"),
    [
        ("Et*4|tttt|t*3,L", 3, [4, 4, 3]),
        (DEEPSEEK, 32, [3, *[2] * 29, 1, 0]),
        (DEEPSEEK, 16, [5, *[4] * 13, 3, 2]),
        (SHORT, 4, [1, 2, 2, 3]),
        ("E(t|t)*2|L", 4, [1, 2, 1, 0]),
        ("E,,t*1,0|L", 2, [10, 0]),
        ("Et*0|(t*2|)*2L", 4, [0, 2, 2, 0]),
    ],
)
def test_a_layout_says_the_layers_of_every_rank(text: str, pp: int, layers: list[int]) -> None:
    layout = parsed_layout(text)
    assert [sum(chunks) for chunks in layout.layers_of_chunks(pp)][: len(layers)] == layers


@pytest.mark.parametrize(
    ("text", "position", "what"),
    [
        ("Ettx|L", 4, "'x', accepted E, t, m, L and |"),
        ("E,tt,x|L", 6, "'x'"),
        ("Et*|L", 3, "'*'"),
        ("E(tt|*2L", 2, "'('"),
        ("E((t|)*2t)*2L", 2, "'('"),
        ("E(t|)*2*3L", 8, "'*'"),
        ("tt|L", 1, "accepted E, the embedding, as the first letter"),
        ("", 1, "accepted E"),
        ("Ett", 3, "accepted L, the output layer with the loss, as the last letter"),
        ("Ett|L|", 6, "accepted L"),
        ("Et|Et|L", 4, "E more than once"),
        ("EtL|tL", 3, "L more than once"),
        ("Et|m|tL", 6, "t behind m"),
        ("Et|m|mL", 6, "m on a further stage"),
        ("E|L", 1, "no layer"),
        ("Et*999999|L", 2, "accepted at most 100,000 letters"),
    ],
)
def test_what_is_no_layout_is_refused_at_its_position(text: str, position: int, what: str) -> None:
    with pytest.raises(LayoutError) as error:
        parsed_layout(text)
    assert str(error.value).startswith(f"found {text!r}, at position {position}: ")
    assert what in str(error.value)


def test_columns_of_layouts_are_those_of_each() -> None:
    text = np.array([DEEPSEEK, SHORT, "none", "Et|t*9|tt|t*12|tL"])
    layers, pp, vpp = np.array([61, 8, 16, 25]), np.array([16, 4, 4, 5]), np.array([2, 2, 2, 1])
    split = StageLayers(layers, pp, vpp, pipeline_layout=text)
    assert split.fit.all() and split.are_even.all() and split.all_have_some.all()
    assert split.first.tolist() == [5, 1, 4, 1] and split.last.tolist() == [2, 3, 4, 1]
    (_, second), (numbers, fuller) = split.between
    assert second.tolist() == [4, 2, 4, 9]
    assert numbers.tolist() == [14, 0, 0, 3] and fuller.tolist() == [3, 0, 0, 12]
    assert not StageLayers(60, 16, 2, pipeline_layout=DEEPSEEK).fit
    assert not StageLayers(61, 16, 1, pipeline_layout=DEEPSEEK).fit
    # The layers of multi-token prediction are in the first of four chunks.
    assert not StageLayers(2, 2, 4, pipeline_layout="Ett|m|||||L").fit


SPACE = """\
version: 1
model: {model}
cluster: dgx_h100
trainer: {{adapter: {adapter}, entry: train.py, args: [{args}]}}
parameters: {{num_nodes: 8, tp: 4, mbs: 1, gas: 16, {more}}}
objective: {{maximize: tokens_per_second}}
"""


def space(load: Load, more: str, adapter: str = "megatron-lm", **said: str) -> SearchSpace:
    known = {"model": "llama_8b", "args": ""} | said
    return load(SPACE.format(adapter=adapter, more=more, **known))


# Of 32 layers: one less on both ends, a light last stage, in four chunks of two ranks each.
UNEVEN, LIGHT = "Et*7|(t*9|)*2t*7L", "Et*9|(t*9|)*2t*5L"
CHUNKS = "E|(t*5|)*6ttL"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (f'pp: 4, pipeline_layout: ["{UNEVEN}", "Et*7|t*9|t*9|t*7"]', "at position 14: accepted L"),
        ('pp: 4, pipeline_layout: "Et*8|t*8|t*8|t*9L"', "with 33 t, accepted 32: one for each"),
        ('pp: [2, 4], vpp: 2, pipeline_layout: "Et*16|t*16L"', "with 2 stages, accepted 4, 8"),
        ("pp: 4, pipeline_layout: 7", "accepted text"),
        (f'pp: 4, pipeline_model_parallel_layout: "{UNEVEN}"', "is pipeline_layout here"),
    ],
)
def test_a_wrong_layout_is_an_error_of_its_line(load: Load, more: str, message: str) -> None:
    with pytest.raises(SpaceError) as error:
        space(load, more)
    assert message in str(error.value)
    assert ".yaml:5:" in str(error.value) and str(error.value).count("\n") < 10


def test_layouts_are_searched_with_megatrons_own_split_among_them(load: Load) -> None:
    listed = f'pp: [1, 4, 8], pipeline_layout: [none, "{UNEVEN}", "{CHUNKS}"]'
    searched = space(load, listed)
    assert searched.parameters["vpp"].values == (1, 2)  # eight stages on four ranks
    # Without: 1 x 1, 4 x 1, 4 x 2, 8 x 1, 8 x 2; with one: 4 x 1; 4 x 2 and 8 x 1.
    assert check(searched).valid == 5 + 1 + 2
    config = {"num_nodes": 8, "tp": 4, "mbs": 1, "gas": 16, "pp": 4}
    chunks = {**config, "vpp": 2, "pipeline_layout": CHUNKS}
    argv = searched.command(chunks, "/t")
    assert argv[argv.index("--pipeline-model-parallel-layout") + 1] == CHUNKS
    assert "--num-layers-per-virtual-pipeline-stage" not in argv
    plain = searched.command({**chunks, "pipeline_layout": "none"}, "/t")
    assert plain[plain.index("--num-layers-per-virtual-pipeline-stage") + 1] == "4"
    assert "--pipeline-model-parallel-layout" not in plain
    refused = searched.first_violation({**chunks, "vpp": 1}) or ""
    assert refused.startswith("layout_by_stages: pipeline_layout has num_layers t and pp * vpp")
    told = Export.of(searched, chunks, "megatron-lm")
    assert ("--pipeline-model-parallel-layout", CHUNKS) in told.arguments
    assert not told.unmapped
    assert "pipeline_layout" in " ".join(Export.of(searched, chunks, "torchtitan").unmapped)


def test_chunks_follow_from_pipelines_however_they_are_listed(load: Load) -> None:
    assert space(load, f'pp: {{range: [4, 8], step: 4}}, pipeline_layout: "{CHUNKS}"').parameters[
        "vpp"
    ].values == (1, 2)
    with pytest.raises(SpaceError, match="log2"):
        space(load, f'pp: {{log2: [0, 8]}}, pipeline_layout: "{CHUNKS}"')


def test_a_layout_says_nothing_of_the_chunks_of_a_framework_without_any(load: Load) -> None:
    found = space(load, f'pp: 4, pipeline_layout: [none, "{UNEVEN}"]', "torchtitan")
    assert "vpp" not in found.parameters


def test_a_layout_goes_without_other_words_for_stages(load: Load) -> None:
    both = space(load, f'pp: 4, last_stage_layers: [0, 5], pipeline_layout: [none, "{LIGHT}"]')
    config = {"num_nodes": 8, "tp": 4, "mbs": 1, "gas": 16, "pp": 4}
    for layers, layout, refused in ((0, LIGHT, False), (5, "none", False), (5, LIGHT, True)):
        found = both.first_violation(
            {**config, "vpp": 1, "last_stage_layers": layers, "pipeline_layout": layout}
        )
        assert (found or "").startswith("stages_given_or_counted") is refused, found


@pytest.mark.parametrize(
    ("adapter", "args"),
    [
        ("megatron-lm", f'--pipeline-model-parallel-layout, "{CHUNKS}"'),
        ("megatron-bridge", f"\"model.pipeline_model_parallel_layout='{CHUNKS}'\""),
    ],
)
def test_a_layout_among_the_trainers_own_arguments_counts(
    load: Load, adapter: str, args: str
) -> None:
    found = space(load, "pp: 4", adapter, args=args)
    assert found.parameters["pipeline_layout"].values == (CHUNKS,)
    assert found.parameters["vpp"].values == (2,)
    config: dict[str, Any] = {name: p.values[0] for name, p in found.parameters.items()}
    assert found.first_violation(config) is None
    argv = found.command(config, "/t")
    assert [text for text in argv if CHUNKS in text] == [
        CHUNKS if adapter == "megatron-lm" else f"model.pipeline_model_parallel_layout='{CHUNKS}'"
    ]
    with pytest.raises(SpaceError, match=r"'trainer': pipeline_layout: found its argument without"):
        space(load, "pp: 4", args="--pipeline-model-parallel-layout")
    with pytest.raises(SpaceError, match=r"'trainer': pipeline_layout: found .* position 3"):
        space(load, "pp: 4", adapter, args=args.replace("(t*5|)*6ttL", "(t*5|*6ttL"))
