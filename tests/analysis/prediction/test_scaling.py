"""``meshtune predict --scaling``: a configuration on other numbers of nodes."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from analysis.cost.time_constants import TimeConstants
from analysis.prediction.pricing import Pricing
from analysis.prediction.scaling import Scaled
from analysis.report.drawing import Drawn
from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import load_space

# Dash et al. 2023, Table V.
RECIPE = {"num_nodes": 16, "tp": 4, "pp": 16, "vpp": 1, "mbs": 1, "gas": 320, "zero_stage": 1}
RECIPE |= {"sequence_parallel": False, "recompute": "full"}


@pytest.fixture(scope="module")
def pricing() -> Pricing:
    return Pricing(load_space("gpt_175b_frontier"))


def test_the_batch_grows_with_the_nodes_in_weak_scaling_and_stays_in_strong(
    pricing: Pricing,
) -> None:
    weak, strong = (Scaled.of(pricing, RECIPE, kind, [16, 32, 80]) for kind in ("weak", "strong"))
    assert weak.prediction.jobs.global_batch.tolist() == [640, 1280, 3200]
    assert weak.prediction.jobs.layout.gas.tolist() == [320, 320, 320]
    assert strong.prediction.jobs.global_batch.tolist() == [640, 640, 640]
    assert strong.prediction.jobs.layout.gas.tolist() == [320, 160, 64]
    assert weak.efficiency[0] == strong.efficiency[0] == 1
    assert weak.efficiency[-1] > strong.efficiency[-1]


def test_its_own_number_of_nodes_is_predicted_as_ever(pricing: Pricing) -> None:
    scaled = Scaled.of(pricing, RECIPE, "strong", [16])
    assert scaled.prediction.step_time_s == pytest.approx(pricing.predict([RECIPE]).step_time_s)


def test_efficiency_is_the_rate_of_a_node_over_that_on_the_fewest(pricing: Pricing) -> None:
    scaled = Scaled.of(pricing, RECIPE, "strong", [64, 16])
    rates = scaled.prediction.tokens_per_second / scaled.prediction.num_nodes
    assert scaled.prediction.num_nodes.tolist() == [16, 64]
    assert scaled.efficiency == pytest.approx(rates / rates[0])
    # The same four times the GPUs, a quarter of the micro-batches: the bubble is what it loses.
    bubble = (1 + 15 / 320) / (1 + 15 / 80)
    assert scaled.efficiency[1] == pytest.approx(bubble, rel=0.05)


def test_what_cannot_be_is_left_out_and_said(pricing: Pricing) -> None:
    scaled = Scaled.of(pricing, RECIPE, "strong", [7, 16, 24, 9872])
    assert scaled.prediction.num_nodes.tolist() == [16]
    said = "\n".join(scaled.left_out)
    assert "24, 9,872 nodes: 640 sequences are not a whole number of micro-batches of 1" in said
    assert "7 nodes: " in said
    weak = Scaled.of(pricing, RECIPE, "weak", [4, 16, 9872])
    assert "4 nodes: world_by_tp_pp" in "\n".join(weak.left_out)
    assert "9,872 nodes: nodes_in_cluster" in "\n".join(weak.left_out)


def test_what_does_not_fit_is_left_out(pricing: Pricing) -> None:
    """With few replicas each holds most optimizer states itself."""
    scaled = Scaled.of(pricing, {**RECIPE, "pp": 8}, "weak", [4, 8, 16, 32, 64])
    assert "4, 8 nodes: expected to need more than 64 GiB" in "\n".join(scaled.left_out)
    assert np.all(scaled.prediction.fits >= 0.5)


def test_without_any_number_of_nodes_it_says_why(pricing: Pricing) -> None:
    with pytest.raises(ValueError, match=r"no number of nodes\n  3 nodes: world_by_tp_pp"):
        Scaled.of(pricing, RECIPE, "weak", [3])


def test_nodes_are_halved_and_doubled_as_far_as_the_cluster_goes(pricing: Pricing) -> None:
    scaled = Scaled.of(pricing, RECIPE, "weak")
    assert scaled.prediction.num_nodes.tolist() == [8 * 2**k for k in range(11)]
    smaller = replace(
        pricing.space, cluster=pricing.space.cluster.model_copy(update={"num_nodes": 64})
    )
    assert Scaled.of(Pricing(smaller), RECIPE, "weak").prediction.num_nodes.tolist() == [
        8,
        16,
        32,
        64,
    ]


def test_errors_that_all_sizes_share_do_not_widen_the_efficiency(pricing: Pricing) -> None:
    kinds = [f.name in ("gemm_share", "inner_size") for f in fields(TimeConstants)]
    rates = Pricing(pricing.space)
    rates.model = replace(pricing.model, covariance=np.diag(0.04 * np.array(kinds)))
    scaled = Scaled.of(rates, RECIPE, "weak", [16, 256])
    less, more = scaled.efficiency_log_sds
    assert less[0] == more[0] == 0
    assert 0 < max(less[1], more[1]) < 0.1 * scaled.prediction.time_log_sds[1][1]
    links = Scaled.of(pricing, RECIPE, "weak", [16, 256])  # where no constant is known at all
    assert links.efficiency_log_sds[0][1] > 2 * max(less[1], more[1])


def test_a_calibrated_model_scales_by_what_it_has_learnt() -> None:
    pricing = Pricing(load_space("gpt_175b_frontier"))
    before = Scaled.of(pricing, RECIPE, "weak", [16, 32]).prediction.step_time_s
    run = Run(Path("nowhere"))
    for number, gas in enumerate((40, 80, 160, 320)):
        config = {**RECIPE, "gas": gas}
        slower = 1.4 * float(pricing.predict([config]).step_time_s[0])
        result = {"step_time_s": {"median": slower}}
        run.trials[number] = Trial(number, config, 0.0, kind="ok", objective=1.0, result=result)
    pricing.learn(run)
    after = Scaled.of(pricing, RECIPE, "weak", [16, 32]).prediction.step_time_s
    assert np.all(after > 1.2 * before)


def test_the_table_has_a_line_for_each_number_of_nodes(pricing: Pricing) -> None:
    scaled = Scaled.of(pricing, RECIPE, "strong", [16, 32, 24])
    lines = scaled.table(300e9).splitlines()
    assert lines[0].startswith("strong scaling of num_nodes=16 tp=4 pp=16")
    assert "days for 300 billion tokens" in lines[1] and "J/token" in lines[1]
    assert [line.split()[:3] for line in lines[2:4]] == [["16", "320", "640"], ["32", "160", "640"]]
    assert lines[4].startswith("after failures: ") and scaled.goodput.share[0] < 1
    assert lines[5].startswith("left out: 24 nodes")
    low, high = scaled.prediction.interval_s()
    assert f"({low[0]:.3g}-{high[0]:.3g})" in lines[2]


def test_a_cluster_of_unknown_power_has_no_energy() -> None:
    space = load_space("tiny_cpu")
    config = {"tp": 4, "pp": 1, "mbs": 8, "gas": 2, "sequence_parallel": True, "recompute": "full"}
    assert "J/token" not in Scaled.of(Pricing(space), config, "weak", [1]).table(1e9)


def test_the_figure_is_a_pdf_or_an_svg_whose_text_is_text(pricing: Pricing, tmp_path: Path) -> None:
    figure = Drawn.of_what(Scaled.of(pricing, RECIPE, "weak", [16, 32, 64]))
    assert figure.encoded("pdf").startswith(b"%PDF")
    drawn = figure.encoded("svg")
    assert b">tokens/s</text>" in drawn and b"weak scaling: num_nodes=16" in drawn
    assert drawn.count(b"<circle") == 2 * 3
    with pytest.raises(ValueError, match=r"accepted svg or pdf"):
        figure.savefig(tmp_path / "x.png")


def test_every_degree_that_splits_a_replica_leaves_fewer_replicas(tmp_path: Path) -> None:
    """Context parallelism of 2 halves them; a batch that stays then has more micro-batches."""
    content = {
        "version": 1,
        "trainer": {"command": ["train", "--cp={cp}", "--tp={tp}"], "axes": ["cp"]},
        "model": {"num_layers": 8, "hidden_size": 1024, "num_heads": 16, "vocab_size": 50304,
                  "seq_length": 4096},
        "cluster": "dgx_h100",
        "parameters": {"num_nodes": 2, "tp": 2, "cp": 2, "pp": 1, "mbs": 1, "gas": [4, 8],
                       "zero_stage": 1},
        "objective": {"maximize": "tokens_per_second"},
    }  # fmt: skip
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(content))
    pricing = Pricing(load_space(str(path)))
    config = {"num_nodes": 2, "tp": 2, "cp": 2, "pp": 1, "mbs": 1, "gas": 8, "zero_stage": 1}
    jobs = Scaled.of(pricing, config, "strong", [1, 2, 4]).prediction.jobs
    assert jobs.layout.dp.tolist() == [2, 4, 8]
    assert jobs.layout.gas.tolist() == [16, 8, 4]
    assert jobs.global_batch.tolist() == [32, 32, 32]
