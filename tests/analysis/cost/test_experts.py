"""Mixtures of experts and 8-bit products: what they cost, and what they leave as it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml

from analysis.cost.collectives import collective_s
from analysis.cost.groups import LinkConstants, group_of
from analysis.cost.memory import MemoryConstants, memory
from analysis.cost.model import CostModel
from analysis.prediction.columns import unpriced_parameters
from analysis.prediction.pricing import NotPricedError, Pricing
from search_spaces import Cluster, SearchSpace, check, load_space
from search_spaces.known import framework_named
from search_spaces.language.schema import ModelFile
from search_spaces.shipped import read_named
from trainer.plan.axes.ep import dispatched_bytes
from trainer.plan.jobs import (
    ALL_TO_ALL,
    BY_HABIT,
    FLEX,
    FULL,
    LAYER_GRAPHS,
    NO_GRAPHS,
    STEP_GRAPHS,
    Jobs,
    jobs,
    joined,
)
from trainer.plan.model import ModelConfig
from trainer.plan.sizes import expert_weights

MEGATRON_BRIDGE = framework_named("megatron-bridge")

PLAN = {"tp": 1, "pp": 4, "dp": 16, "mbs": 1, "gas": 16, "zero_stage": 1}


def shape(name: str) -> ModelConfig:
    return read_named(ModelFile, "model", name).config()


def plan(model: str = "qwen3_235b_a22b", **changes: Any) -> Jobs:
    return jobs({**PLAN, **changes}, shape(model))


def model(cluster: str = "dgx_h100") -> CostModel:
    return CostModel(Cluster.named(cluster), MEGATRON_BRIDGE)


def test_groups_of_experts_have_communicators_of_their_own() -> None:
    outside = memory(plan(tp=2, ep=[1, 8, 16], etp=1), MEGATRON_BRIDGE, MemoryConstants()).framework
    # Experts over none, beside 32 holders; over 8, beside 4; over 16, beside 2.
    dense = memory(plan(tp=2, ep=32, etp=1), MEGATRON_BRIDGE, MemoryConstants()).framework
    communicator = MemoryConstants().communicator_bytes
    np.testing.assert_allclose(outside - dense, np.array([0, 1, 1]) * communicator)


def test_expert_ranks_come_out_of_those_of_data_parallelism() -> None:
    found = plan(ep=[1, 8, 16])
    assert [*found.layout.world_size] == [64.0] * 3
    assert [*found.global_batch] == [256.0] * 3


def test_expert_weights_are_dealt_out_and_their_optimizer_states_stay_split_over_all() -> None:
    one, eight = plan(ep=1), plan(ep=8)
    shares = [memory(job, MEGATRON_BRIDGE, MemoryConstants()) for job in (one, eight)]
    layers = np.ceil(94 / 4)
    mixture = one.model.mixture
    assert mixture is not None
    experts = layers * expert_weights(one.model, mixture)
    assert shares[0].weights - shares[1].weights == pytest.approx(2 * experts * (1 - 1 / 8))
    # Twelve bytes of every weight over all 16 ranks that share a stage, whoever holds it.
    assert shares[1].optimizer == pytest.approx(shares[0].optimizer)


def test_dense_layers_come_first_and_have_no_experts() -> None:
    shallow = {**shape("deepseek_v3").model_dump(), "num_layers": 4}
    record = type(shape("deepseek_v3"))
    mixed, plain = (record(**{**shallow, "dense_layers": count}) for count in (0, 3))
    whole, some = (
        memory(jobs({**PLAN, "pp": 1}, m), MEGATRON_BRIDGE, MemoryConstants()).weights
        for m in (mixed, plain)
    )
    assert (whole - some) / 2 == pytest.approx(mixed.num_parameters - plain.num_parameters)


def test_tokens_that_leave_a_node_take_longer() -> None:
    apart = model().predict(plan(ep=[1, 8, 16], dispatcher=ALL_TO_ALL)).time.experts
    assert apart[0] == 0
    assert 0 < apart[1] < 0.5 * apart[2]
    # On an NVLink domain of 64 GPUs nothing leaves it.
    near = model("gb200_nvl72").predict(plan(ep=[8, 16])).time.experts
    assert near[1] < 2 * near[0]


def test_recomputing_everything_sends_tokens_again() -> None:
    kept, again = (model().predict(plan(ep=8, recompute=r)).time for r in (0, FULL))
    assert again.experts == pytest.approx(1.5 * kept.experts)


def test_experts_with_few_tokens_compute_slowly() -> None:
    # The same tokens in one micro-batch and in eight: tiles of 128 rows are not full.
    long, short = (
        model("dgx_b200").predict(plan("qwen3_30b_a3b", pp=1, dp=8, ep=8, **changes)).time
        for changes in ({"gas": 1}, {"gas": 8, "seq_length": 512})
    )
    assert short.forward_backward > 1.1 * long.forward_backward


def test_a_capacity_factor_computes_and_sends_that_many_rows() -> None:
    mixed = plan(ep=8)
    assert mixed.model.mixture is not None
    wider = mixed.model.mixture._replace(capacity=np.array([1.5]))
    fuller = replace(mixed, model=replace(mixed.model, mixture=wider))
    times = [model().predict(job).time.forward_backward for job in (mixed, fuller)]
    assert times[1] > times[0]
    sent = [
        dispatched_bytes(job, job.model.mixture) for job in (mixed, fuller) if job.model.mixture
    ]
    assert sent[1] == pytest.approx(1.5 * sent[0])


def test_tokens_that_are_sent_once_to_a_node_cost_the_network_less() -> None:
    # 8 experts of a token on 4 nodes are on 3.6 of them: 0.45 of the copies cross the network.
    ways = plan("qwen3_235b_a22b", dp=32, ep=32, dispatcher=[ALL_TO_ALL, FLEX, BY_HABIT])
    each, once, by_habit = model().predict(ways).time.experts
    assert once / each == pytest.approx(4 * (1 - (3 / 4) ** 8) / 8, rel=0.02)
    assert by_habit == once


def test_sending_tokens_hides_behind_the_layers_of_another_micro_batch() -> None:
    # In a node all of it, but that of the first and last of 16 micro-batches; over eight, a part.
    for ranks, most in ((8, 0.15), (64, 1.0)):
        both = plan("qwen3_30b_a3b", pp=1, dp=ranks, ep=ranks, overlaps_dispatch=[False, True])
        time = model().predict(both).time
        assert 0 < time.experts[1] < most * time.experts[0]
        assert time.forward_backward[0] == time.forward_backward[1]
    alone = plan("qwen3_30b_a3b", pp=1, dp=64, ep=64, gas=1, overlaps_dispatch=[False, True])
    shown, hidden = model().predict(alone).time.experts
    assert shown == hidden  # there is no other one
    kept = model().predict(both).memory.activations
    assert kept[1] == pytest.approx(kept[0] * (1 + 1 / 48), rel=0.01)  # one comes as one goes


def test_the_host_launches_every_local_expert_unless_a_graph_does() -> None:
    graphs = [NO_GRAPHS, LAYER_GRAPHS, STEP_GRAPHS]
    short = {"pp": 1, "dp": 64, "seq_length": 256, "graphs": graphs}  # the device waits
    few, many = (
        model().predict(plan("qwen3_30b_a3b", ep=ep, **short)).time.launch for ep in (64, 8)
    )
    assert many[0] > few[0] > few[1] > few[2] == many[2] == 0
    assert many[1] > 2 * few[1]  # 16 experts on a rank, not 2: no graph has them
    dense = model().predict(plan("llama_8b", **short)).time.launch
    assert dense[0] > dense[1] == dense[2] == 0


def weights_in_eight_bits(both: Jobs) -> Iterator[float]:
    """Bytes of weights in FP8 over those in 16 bits, of Megatron-Bridge and of Megatron-LM."""
    for name in ("megatron-bridge", "megatron-lm"):
        weights = memory(both, framework_named(name), MemoryConstants()).weights
        yield weights[1] / weights[0]


@pytest.mark.parametrize("cluster", ["dgx_h100", "dgx_b200", "gb200_nvl72"])
def test_eight_bits_are_faster_but_less_than_twice(cluster: str) -> None:
    split = {**PLAN, "tp": 4, "sequence_parallel": True}
    both = jobs({**split, "fp8": [False, True]}, shape("llama_70b"))
    time = model(cluster).predict(both).step_time_s
    assert 0.5 < time[1] / time[0] < 0.9
    # 8-bit copies for both directions are the weights, or lie beside them.
    assert [*weights_in_eight_bits(both)] == pytest.approx([1, 2])


def test_rows_with_and_without_experts_are_priced_as_each_alone() -> None:
    alone = [plan("llama_8b"), plan("deepseek_v3", ep=16), plan("gpt_oss_120b", ep=8)]
    together = model().predict(joined(alone))
    for row, job in enumerate(alone):
        one = model().predict(job)
        assert together.step_time_s[row] == pytest.approx(one.step_time_s[0], rel=1e-12)
        assert together.peak_bytes[row] == pytest.approx(one.peak_bytes[0], rel=1e-12)


def test_a_domain_of_several_nodes_needs_no_network_inside() -> None:
    rack = Cluster.named("gb200_nvl72")
    assert (rack.gpus_per_node, rack.domain_gpus) == (4, 64)
    links = LinkConstants()
    inside, outside = (
        collective_s("all_to_all", rack, links, group_of(size, 1, 256), 1e8)[0]
        for size in (64, 128)
    )
    assert outside > 4 * inside


def space(tmp_path: Any, **changes: Any) -> SearchSpace:
    values = {
        "version": 1,
        "model": "qwen3_30b_a3b",
        "cluster": "dgx_h100",
        "trainer": {"command": ["train", "--tp={tp}", "--ep={ep}"], "framework": "megatron-bridge"},
        "parameters": {
            "num_nodes": [1, 2],
            "tp": [1, 2],
            "pp": 1,
            "ep": [1, 4, 8, 16, 24],
            "mbs": 1,
            "gas": 8,
            **changes.pop("parameters", {}),
        },
        "objective": {"maximize": "tokens_per_second"},
        **changes,
    }
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(values))
    return load_space(path)


def valid(made: SearchSpace, config: dict[str, Any]) -> bool:
    return made.first_violation(config) is None


def test_a_space_deals_experts_out_only_as_they_divide(tmp_path: Any) -> None:
    made = space(tmp_path)
    rules = {count.name: count for count in check(made).rules}
    assert {"experts_by_ep", "replicas_by_ep"} <= rules.keys()
    facts = made.facts({"num_nodes": 2, "tp": 2, "pp": 1, "ep": 8, "mbs": 1, "gas": 8})
    assert facts["dp"] == 8  # of 16 ranks, whatever ep is
    for wrong in ({"ep": 16}, {"ep": 24}):
        config = {"num_nodes": 2, "tp": 2, "pp": 1, "ep": 8, "mbs": 1, "gas": 8, **wrong}
        assert not valid(made, config)
    wide = space(tmp_path, parameters={"etp": [1]})
    assert valid(wide, {"num_nodes": 2, "tp": 2, "pp": 1, "ep": 16, "etp": 1, "mbs": 1, "gas": 8})


def test_ep_is_priced_for_a_mixture_and_noticed_to_do_nothing_elsewhere(tmp_path: Any) -> None:
    made = space(tmp_path)
    assert unpriced_parameters(made) == []
    config = {"num_nodes": 2, "tp": 1, "pp": 1, "mbs": 1, "gas": 8}
    priced = Pricing(made).predict([{**config, "ep": ep} for ep in (1, 8, 16)])
    assert len({*priced.peak_bytes}) == 3
    assert unpriced_parameters(space(tmp_path, model="llama_8b")) == ["ep"]


def test_dispatcher_overlap_and_graphs_are_priced_by_the_words_of_a_space(tmp_path: Any) -> None:
    words = {
        "moe_token_dispatcher": ["alltoall", "flex"],
        "moe_comm_overlap": [False, True],
        "cuda_graphs": ["none", "layers", "step"],
    }
    made = space(tmp_path, parameters=words)
    assert unpriced_parameters(made) == []
    base = {"num_nodes": 2, "tp": 1, "pp": 1, "ep": 16, "mbs": 1, "gas": 8}
    base |= {name: values[0] for name, values in words.items()}
    changed = [{**base, name: value} for name in words for value in words[name][1:]]
    slow, *fast = Pricing(made).predict([base, *changed]).step_time_s
    assert max(fast) < slow
    assert fast[3] < fast[2]  # the whole step's graph against the layers'
    for own in ({"moe_comm_overlap": ["off", "on"]}, {"cuda_graphs": ["none", "local"]}):
        strange = space(tmp_path, parameters={**words, **own})
        assert unpriced_parameters(strange) == [*own]
        told = [{**base, name: value} for name in own for value in own[name]]
        assert np.ptp(Pricing(strange).predict(told).step_time_s) == 0
    dense = space(tmp_path, model="llama_8b", parameters={**words, "ep": 1})
    assert {*unpriced_parameters(dense)} == {"moe_token_dispatcher", "moe_comm_overlap"}


def test_eight_bits_need_the_clusters_own_peak(tmp_path: Any) -> None:
    words = {"precision": ["bf16", "fp8"]}
    priced = Pricing(space(tmp_path, parameters=words))
    config = {"num_nodes": 1, "tp": 1, "pp": 1, "ep": 8, "mbs": 1, "gas": 8}
    fast = priced.predict([{**config, "precision": p} for p in ("bf16", "fp8")]).step_time_s
    assert fast[1] < fast[0]
    with pytest.raises(NotPricedError, match="states no peak_fp8_tflops"):
        Pricing(space(tmp_path, parameters=words, cluster="dgx_a100"))


def test_tensor_parallelism_may_span_nodes_that_links_join(tmp_path: Any) -> None:
    wide = space(tmp_path, cluster="gb200_nvl72", parameters={"num_nodes": [4], "tp": [8, 128]})
    config = {"num_nodes": 4, "tp": 8, "pp": 1, "ep": 1, "mbs": 1, "gas": 8}
    assert valid(wide, config)
    assert "tp_within_links" in {count.name for count in check(wide).rules}
