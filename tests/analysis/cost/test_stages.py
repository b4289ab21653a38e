"""Uneven stages in the price: the slowest stage decides the time, the fullest one the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.cost.activations import waiting_logits_bytes
from analysis.cost.memory import MemoryConstants, memory
from analysis.cost.model import CostModel
from analysis.cost.stages import fullest_stages, stage_layers
from analysis.cost.state_exchanges import fullest_parameters
from analysis.prediction.columns import unpriced_parameters
from analysis.prediction.pricing import Pricing
from search_spaces import SearchSpace, load_space
from search_spaces.cluster import Cluster
from search_spaces.known import framework_named
from support.pipeline_orders import most_in_flight, turns
from trainer.plan.jobs import (
    BREADTH_FIRST,
    FULL,
    NONE,
    ONE_F_ONE_B,
    ZERO_BUBBLE,
    ZERO_BUBBLE_V,
    Jobs,
    jobs,
)
from trainer.plan.layouts import parsed_layout

MEGATRON, DEEPSPEED = framework_named("megatron-lm"), framework_named("deepspeed-bf16")
MESHTUNE = framework_named("meshtune")
COMPUTING = ("forward_backward", "recompute", "tensor", "launch", "head")


def gpt(num_layers: int, pp: int, **columns: Any) -> Jobs:
    """BLOOM's width and vocabulary with so many layers."""
    shape: dict[str, Any] = {
        "num_layers": num_layers,
        "hidden_size": 14336,
        "num_heads": 112,
        "kv_heads": 112,
        "ffn_size": 4 * 14336,
        "gated": False,
        "vocab_size": 250880,
        "seq_length": 2048,
        "tied_embeddings": True,
        "tp": 4,
        "pp": pp,
        "dp": 8,
        "mbs": 2,
        "gas": 128,
        "zero_stage": 1,
        "recompute": FULL,
    }
    return jobs(shape | columns)


def loads(job: Jobs, framework: str) -> list[float]:
    return [stage.layers[0] for stage in fullest_stages(job, framework_named(framework))]


def test_memory_is_that_of_the_stages_of_published_runs() -> None:
    ends = {"account_for_embedding": 1, "account_for_loss": 1}
    assert loads(gpt(70, 12, **ends), "deepspeed-bf16") == [5, 6, 5]
    assert loads(gpt(78, 12), "megatron-deepspeed") == [7, 7, 1]
    assert loads(gpt(70, 8, last_stage_layers=7), "megatron-lm") == [9, 9, 7]
    assert loads(gpt(34, 4, first_stage_layers=7), "megatron-lm") == [7, 9, 9]
    assert loads(gpt(126, 8), "torchtitan") == [15, 16, 15]
    assert loads(gpt(126, 8, account_for_loss=0), "torchtitan") == [15, 16, 15]
    assert loads(gpt(128, 8, account_for_embedding=0, account_for_loss=0), "torchtitan")[0] == 16


def test_a_framework_that_knows_no_such_setting_is_priced_without_it() -> None:
    assert loads(gpt(72, 8, last_stage_layers=2), "axonn") == [9, 9, 9]
    assert loads(gpt(72, 8, last_stage_layers=2), "nanotron") == loads(gpt(72, 8), "nanotron")


def test_weights_are_those_of_the_fullest_stage_whichever_it_is() -> None:
    layer, table = 12 * 14336**2, 250880 * 14336
    job = gpt(70, 12, account_for_embedding=1, account_for_loss=1)
    assert fullest_parameters(job, DEEPSPEED)[0] == pytest.approx((5 * layer + table) / 4)
    # A first stage of two leaves the next ones 34 each.
    job = gpt(70, 3, first_stage_layers=2)
    assert fullest_parameters(job, MEGATRON)[0] == pytest.approx((34 * layer + table) / 4)
    job = gpt(70, 4, first_stage_layers=2, last_stage_layers=2)
    assert fullest_parameters(job, MEGATRON)[0] == pytest.approx(33 * layer / 4)
    parts = memory(job, MEGATRON, MemoryConstants())
    assert parts.weights == pytest.approx(2 * 33 * layer / 4)


def test_the_slowest_stage_decides_the_time() -> None:
    model = CostModel(Cluster.named("dgx_a100"), MEGATRON)
    uneven, even = gpt(70, 8, last_stage_layers=7), gpt(72, 8)
    dealt = stage_layers(uneven, MEGATRON)
    assert (dealt.most[0], dealt.last[0]) == (9, 7)
    one, other = (model.predict(job).time for job in (uneven, even))
    assert one.forward_backward == pytest.approx(other.forward_backward)
    assert one.head == 0 and other.head > 0, "seven layers leave time for the output layer"
    # Each layer that the first stage has more than its share of costs all micro-batches.
    firsts = np.array([0, 16, 37])
    times = model.predict(gpt(72, 8, first_stage_layers=firsts)).time
    assert times.forward_backward / times.forward_backward[0] == pytest.approx(firsts.clip(9) / 9)


def test_weights_gradients_fill_two_thirds_of_a_bubble_and_half_with_recomputation() -> None:
    model = CostModel(Cluster.named("dgx_a100"), MEGATRON)
    for recompute, left in ((NONE, 1 / 3), (FULL, 1 / 2)):
        orders = np.array([ONE_F_ONE_B, BREADTH_FIRST, ZERO_BUBBLE])
        times = model.predict(gpt(72, 8, schedule=orders, recompute=recompute)).time
        assert times.bubble / times.bubble[0] == pytest.approx([1, 1, left])
        assert times.forward_backward == pytest.approx(times.forward_backward[0])


def test_counting_embedding_and_loss_frees_memory_where_the_vocabulary_is_large() -> None:
    job = gpt(30, 4, account_for_embedding=np.array([0, 1]), account_for_loss=np.array([0, 1]))
    first, _, last = fullest_stages(job, DEEPSPEED)
    assert first.layers.tolist() == [8, 7] and last.layers.tolist() == [6, 7]
    needed = memory(job, DEEPSPEED, MemoryConstants())
    assert needed.total[1] < 0.95 * needed.total[0]


def laid(*ranks: int, chunks: int = 1) -> str:
    """A layout with so many layers on each rank, in equal chunks."""
    stages = chunks * ["t" * (layers // chunks) for layers in ranks]
    return f"E{'|'.join(stages)}L"


def test_a_layout_of_equal_stages_has_the_price_of_the_even_split() -> None:
    model = CostModel(Cluster.named("dgx_a100"), MEGATRON)
    for vpp in (1, 3):
        texts = np.array(["none", laid(*8 * [9], chunks=vpp)])
        told = model.predict(gpt(72, 8, vpp=vpp, pipeline_layout=texts))
        for parts in (told.time, memory(told.jobs, MEGATRON, MemoryConstants())):
            for name, column in parts.as_dict().items():
                assert column[0] == column[1], name
    texts = np.array([laid(7, 9, 9, 9), "none"])
    given = model.predict(gpt(34, 4, first_stage_layers=7, pipeline_layout=texts)).step_time_s
    assert given[0] == given[1], "layers of the first stage alone, or of all"


def test_a_layer_less_beside_the_output_layer_is_faster_until_another_stage_is_the_slowest() -> (
    None
):
    model = CostModel(Cluster.named("dgx_a100"), MEGATRON)
    ends = [laid(*[9] * 8), laid(10, *[9] * 6, 8), laid(10, 10, *[9] * 5, 7), laid(15, *[9] * 6, 3)]
    times = model.predict(gpt(72, 8, pipeline_layout=np.array(ends))).time
    busy = times.forward_backward + times.recompute + times.head
    assert busy[0] > busy[1] == busy[2] < busy[3]
    assert (times.head > 0).tolist() == [True, False, False, False]


def test_memory_of_a_layout_is_that_of_its_fullest_stage_wherever_it_is() -> None:
    others = [8, 8, 8, 8, 8, 7, 7]
    texts = [laid(*others[:stage], 18, *others[stage:]) for stage in range(1, 7)]
    needed = memory(gpt(72, 8, pipeline_layout=np.array(texts)), MEGATRON, MemoryConstants())
    layer = 12 * 14336**2
    assert needed.weights == pytest.approx(2 * 18 * layer / 4)
    # The later the stage is, the fewer micro-batches it keeps: 7 to 2.
    assert needed.activations / needed.activations[0] == pytest.approx(np.arange(7, 1, -1) / 7)


SPACE = """\
version: 1
model: gpt_22b
cluster: dgx_h100
trainer:
  framework: {framework}
  command: [train, "{{tp}}", "{{pp}}", "{{mbs}}", "{{gas}}", "{{{name}}}"]
parameters: {{num_nodes: 1, tp: 2, mbs: 1, gas: 64, pp: {pp}, {name}: {values}}}
conditions: {{{name}: pp > 1}}
objective: {{minimize: step_time_s.median}}
allow: [uneven_layers]
"""


def space(tmp_path: Path, **said: Any) -> SearchSpace:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE.format(**said))
    return load_space(path)


def held_in_megatrons_order(chunks: tuple[int, ...], pp: int, gas: int, rank: int) -> int:
    """Layers' activations that a rank holds at most: chunk by chunk, as its schedule goes."""
    turn = [chunk for chunk in chunks for _ in range(pp)]
    back = [chunk for chunk in reversed(chunks) for _ in range(pp)]
    forward, backward = (each * (gas // pp) for each in (turn, back))
    warm_up = min(len(forward), 2 * (pp - rank - 1) + (len(chunks) - 1) * pp)
    held = sum(forward[:warm_up])
    most = held
    for new, done in zip(forward[warm_up:], backward, strict=False):
        held += new
        most = max(most, held)
        held -= done
    return most


@pytest.mark.parametrize(
    ("text", "pp", "layers"),
    [
        ("Et*15|t|t|t*15L", 2, 32),
        ("E|(t*5|)*6ttL", 4, 32),
        ("Et*3|(tt|)*29,m|L", 16, 61),
        ("Et|t*9|t*2|t*4|t*8|t*8L", 2, 32),
    ],
)
@pytest.mark.parametrize("per_rank", [1, 2, 6])
def test_ranks_with_unlike_chunks_keep_what_megatrons_order_lets_them(
    text: str, pp: int, layers: int, per_rank: int
) -> None:
    chunks = parsed_layout(text).layers_of_chunks(pp)
    told = gpt(layers, pp, vpp=len(chunks[0]), gas=per_rank * pp, pipeline_layout=np.array([text]))
    for rank in (0, pp - 1):
        stage = fullest_stages(told, MEGATRON)[0 if rank == 0 else 2]
        held = float(stage.layers[0] * stage.in_flight[0])
        assert held == pytest.approx(held_in_megatrons_order(chunks[rank], pp, per_rank * pp, rank))


def test_a_space_says_it_in_its_parameters(tmp_path: Path) -> None:
    given = space(
        tmp_path,
        framework="megatron-lm",
        pp="[1, 4]",
        name="first_stage_layers",
        values="[21, 0, 12]",
    )
    config = {"num_nodes": 1, "tp": 2, "mbs": 1, "gas": 64, "pp": 4}
    configs = [{**config, "first_stage_layers": layers} for layers in (21, 0, 12)]
    times = Pricing(given).predict([*configs, {**config, "pp": 1}]).time
    assert times.total[1] == times.total[2] < times.total[0]
    # Inactive, it says nothing: 48 layers on the only stage.
    assert times.forward_backward[3] == pytest.approx(48 / 12 * times.forward_backward[1])
    assert unpriced_parameters(given) == []


def test_counted_ends_are_the_frameworks_habit_where_a_space_says_nothing(tmp_path: Path) -> None:
    said = {"pp": "[1, 4]", "name": "account_for_loss", "values": "[false, true]"}
    config = {"num_nodes": 1, "tp": 2, "mbs": 1, "gas": 64, "pp": 4}
    titan = space(tmp_path, framework="torchtitan", **said)
    job = Pricing(titan).jobs_of([{**config, "account_for_loss": loss} for loss in (False, True)])
    assert job.stages.account_for_loss.tolist() == [0, 1]
    assert job.stages.account_for_embedding.tolist() == [-1, -1]
    # 49 or 50 layers over four, with what counts.
    assert stage_layers(job, framework_named("torchtitan")).last.tolist() == [12, 11]
    assert unpriced_parameters(space(tmp_path, framework="axonn", **said)) == ["account_for_loss"]


FOLDED = [(p, m) for p in (2, 3, 4, 5, 8) for m in (2, p, p + 1, 2 * p - 2, 2 * p, 6 * p)]


@pytest.mark.parametrize(("p", "m"), FOLDED)
@pytest.mark.parametrize("recompute", [NONE, FULL])
def test_stages_that_go_there_and_back_idle_as_long_as_in_torchs_order(
    p: int, m: int, recompute: int
) -> None:
    """With equally long passes, of which recomputation repeats one, and next to no output layer."""
    model = CostModel(Cluster.named("dgx_a100"), MESHTUNE)
    job = gpt(4 * p, p, vpp=2, gas=m, vocab_size=64, schedule=ZERO_BUBBLE_V, recompute=recompute)
    time = model.predict(job).time
    inputs = 2 if recompute == FULL else 1
    busy = 2 * (2 + inputs) * m
    idle = turns(p, m, inputs) - busy
    computing = sum(time.as_dict()[name][0] for name in COMPUTING)
    assert time.bubble[0] / computing == pytest.approx(idle / busy, rel=0.02)


@pytest.mark.parametrize(("p", "m"), FOLDED)
def test_stages_that_go_there_and_back_keep_what_they_keep_in_torchs_order(p: int, m: int) -> None:
    job = gpt(16, p, vpp=2, gas=m, schedule=ZERO_BUBBLE_V)
    every = [most_in_flight(p, m, rank) for rank in range(p)]
    first, second, last = fullest_stages(job, MESHTUNE)
    assert max(most for most, _ in every) / 2 == first.in_flight[0] == last.in_flight[0]
    assert (first.embedding & first.head).all() and not (last.embedding | last.head).any()
    assert not second.head.any()
    assert every[0][1] == 1 and waiting_logits_bytes(job, first.in_flight).tolist() == [0]


def test_a_rank_with_both_ends_holds_both_tables_tied_or_not() -> None:
    folded, loop = (gpt(16, 4, vpp=2, gas=8, schedule=s) for s in (ZERO_BUBBLE_V, ONE_F_ONE_B))
    habits = (MESHTUNE, MemoryConstants())
    table = (
        loop.model.vocab_size[0]
        * loop.model.hidden_size[0]
        * loop.options.element_bytes[0]
        / loop.layout.tp[0]
    )
    more = memory(folded, *habits).weights - memory(loop, *habits).weights
    assert more == pytest.approx(table)
    held = [fullest_parameters(job, MESHTUNE)[0] for job in (folded, loop)]
    assert held[0] - held[1] == pytest.approx(table / loop.options.element_bytes[0])
