"""Placements of training states, priced and measured: what each gains over another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.cost.model import CostModel
from analysis.cost.state_exchanges import held_parameters
from analysis.cost.step import StepParts, step
from analysis.cost.time_constants import TimeConstants
from analysis.sweeps.gpus import with_network
from analysis.sweeps.record import read_csv
from benchmarks.cost_model.peers import Shipped
from benchmarks.cost_model.statements import gpt_shape, placement_columns, zero_topo
from benchmarks.slow_links.schemes import MICRO_BATCH, MODEL, SCHEMES
from search_spaces.cluster import Cluster, Link, Nic
from search_spaces.frameworks import Framework
from search_spaces.known import framework_named
from trainer.plan.formats import Format
from trainer.plan.jobs import Array, Jobs, jobs
from trainer.plan.placement import Topology
from trainer.plan.presets import place

TRUTH = Path(__file__).parents[4] / "shared" / "truth"

# docs/results/slow-links.md: 8 nodes of 2 ranks, r = 1.09, seconds of a step of 8 micro-batches.
SLOW_LINKS_S = {
    "ZeRO-3": 37.17, "ZeRO++": 16.63, "ZeRO++, copy kept": 12.5, "ZeRO-topo": 9.29,
    "qgZ": 31.1, "qgZ + hpZ": 21.8,
}  # fmt: skip
OWN_WORK_S = 1.30
LINK_GB_PER_S = 20.4e6 / 1.09 / 8 / 1e9


def slow_links(peak_tflops: float) -> Cluster:
    adapter = Nic(count=1, gb_per_s=LINK_GB_PER_S, reached_share=0.95)  # TCP's and IP's headers
    return Cluster(
        name="slow", gpus_per_node=2, compute_units=1, memory_gib=4, memory_gb_per_s=100,
        peak_bf16_tflops=peak_tflops, links=[Link(level="node", gpus=2, gb_per_s=1)], nic=adapter,
        overlap=0.02,
    )  # fmt: skip


def scheme_jobs(name: str) -> Jobs:
    scheme = SCHEMES[name]
    wishes = {"quantize_gradients": scheme.get("quantize_gradients")}
    placed = place(scheme["placement"], wishes, 16, 1, Topology(2), Format.BF16, Format.BF16)
    columns = placement_columns(placed) | {
        "renews_copy": scheme.get("refresh_secondary") == "micro_batch"
    }
    return jobs({**columns, "tp": 1, "pp": 1, "dp": 16, "mbs": MICRO_BATCH, "gas": 8}, MODEL)


def test_placements_gain_over_slow_links_what_was_measured() -> None:
    own = framework_named("meshtune").with_habits(reduce_bytes=2)

    def parts(name: str, peak_tflops: float) -> StepParts:
        return step(scheme_jobs(name), slow_links(peak_tflops), own, TimeConstants())

    first = parts("ZeRO-3", 1.0)
    peak_tflops = float((first.forward_backward + first.head)[0] / 8 / OWN_WORK_S)
    predicted = {name: float(parts(name, peak_tflops).total[0]) for name in SLOW_LINKS_S}
    for fast, slow in [
        ("ZeRO++", "ZeRO-3"), ("ZeRO-topo", "ZeRO++"), ("ZeRO-topo", "ZeRO-3"),
        ("ZeRO-topo", "ZeRO++, copy kept"), ("qgZ + hpZ", "qgZ"),
    ]:  # fmt: skip
        measured = SLOW_LINKS_S[slow] / SLOW_LINKS_S[fast]
        assert predicted[slow] / predicted[fast] == pytest.approx(measured, rel=0.15), (fast, slow)


def test_placements_gain_on_frontier_what_xu_et_al_state() -> None:
    """Zero-shot; Xu et al. 2025, section VI."""
    text = {"ZeRO++ vs ZeRO-3": "+40.5%", "ZeRO-topo vs ZeRO++": "+70.7%",
            "ZeRO-topo vs ZeRO-3": "+139.8%", "scaling efficiency at 384 GCD": "0.94"}  # fmt: skip
    facts = pd.DataFrame({"fact": [*text], "value": [*text.values()]})
    shipped = Shipped().fit(())
    for stated in zero_topo(Path("text"), facts):
        assert stated.predicted(shipped) == pytest.approx(stated.published, rel=0.15), stated.name


def node_local_against_global(framework: Framework, num_gpus: list[int], tp: int) -> Array:
    """Step times with optimizer states over all ranks, over those with them inside a node."""
    cluster = with_network(Cluster.named("dgx_a100"), 4, 12.5)
    replicas = np.array(num_gpus) / tp
    shape = {**gpt_shape(32, 4096, 32, 2048), "ffn_size": 11008, "gated": True, "recompute": 0}
    times = []
    for shard in (replicas, 8 / tp):
        degrees = {"weight_shard": 1, "gradient_shard": 1, "optimizer_shard": shard}
        of = jobs({**shape, **degrees, "tp": tp, "pp": 1, "dp": replicas, "mbs": 2 * tp, "gas": 4})
        times.append(CostModel(cluster, framework).predict(of).step_time_s)
    return times[0] / times[1]


@pytest.mark.parametrize("tp", [1, 2])
def test_optimizer_states_within_a_node_beat_those_over_all_ranks(tp: int) -> None:
    """Of a framework without a record, as measured from 32 GPUs on."""
    unknown = framework_named("in-house")
    ratios = node_local_against_global(unknown, [32, 64, 128, 256, 512, 1024], tp)
    assert (ratios > 1).all() and ratios[-1] > 1.1
    file = TRUTH / "a100_internevo_zero1_degree_small.csv"
    if not file.exists():
        pytest.skip("the folder of measured tables is not here")
    frame = read_csv(file)
    rates = {
        (row["n_gpu"], row["zero1_degree"] == "-1"): float(row["tokens_per_s_gpu"])
        for _, row in frame[(frame["section"] == "throughput table")].iterrows()
        if row["tp"] == str(tp)
    }
    measured = [rates[n, False] / rates[n, True] for n in ("32", "64", "128")]
    np.testing.assert_allclose(ratios[:3], measured, rtol=0.1)


def test_quantizing_takes_a_copy_on_each_side_that_no_computation_hides() -> None:
    """ZeRO-3 over links that cost nothing: two gathers, dequantized, and a reduction of both."""
    own, c = framework_named("meshtune"), TimeConstants(call_s=1e-15, hop_s=1e-15)
    nothing = Link(level="node", gpus=16, gb_per_s=1e9)
    fast = slow_links(1.0).model_copy(update={"gpus_per_node": 16, "links": [nothing]})
    asked = {"tp": 1, "pp": 1, "dp": 16, "mbs": 1, "gas": 4, "zero_stage": 3}
    job = jobs(asked | {"gather_bits": 8.25, "reduce_bits": 4.5, "secondary_bits": 0.0}, MODEL)
    found = step(job, fast, own, c)
    numbers = held_parameters(job, own)[0][0]
    copy_s = 2 * 2 * numbers / (fast.memory_gb_per_s * 1e9 * c.memory_share)
    assert found.gather == pytest.approx(2 * 4 * copy_s, rel=1e-3)
    assert found.gradients == pytest.approx(2 * 4 * copy_s, rel=1e-3)
    wide = step(jobs(asked | {"gather_bits": 16, "reduce_bits": 16}, MODEL), fast, own, c)
    assert np.all(wide.gather + wide.gradients < 1e-3 * copy_s)
