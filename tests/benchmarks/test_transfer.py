"""What tables teach of frameworks and GPUs that they are not about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.cost.fitted import OF_FRAMEWORK, OF_GPU, cost_model, gpu_kind
from analysis.cost.step import step
from analysis.cost.time_constants import TimeConstants
from analysis.sweeps.record import Table
from benchmarks.cost_model.fit import fitted_tables
from benchmarks.cost_model.folds import from_others, leave_both_out
from benchmarks.cost_model.metrics import covered, interval_score
from benchmarks.cost_model.transfer import (
    MODEL_LOG_SD,
    NOISE_LOG_SD,
    parts_of,
    shared,
    transferred,
    without_common,
)
from benchmarks.published.gpt import one_cluster_table as published
from search_spaces.cluster import Cluster
from search_spaces.known import framework_named
from trainer.plan.jobs import jobs

PRIOR = TimeConstants()
TRUE = replace(PRIOR, gemm_share=0.6, launch_s=4e-3)
SIZES = (8192, 6144, 5120, 4096)


def made(
    name: str, framework: str, cluster: str, hidden: float, true: TimeConstants = TRUE
) -> Table:
    """Times as the model has them with other constants: large layers, and ones that wait."""
    mbs = np.array([1, 1, 2, 4, 8, 16, 32, 64])
    width = np.where(mbs > 4, hidden, hidden / 8)
    asked = jobs(
        {
            "num_layers": 24, "hidden_size": width,
            "num_heads": 16, "kv_heads": 16, "ffn_size": 4 * width, "gated": False,
            "tied_embeddings": True, "vocab_size": 32000, "seq_length": 2048, "tp": 1, "pp": 1,
            "dp": 8, "gas": 4, "mbs": mbs, "zero_stage": 0,
        }
    )  # fmt: skip
    times = step(asked, Cluster.named(cluster), framework_named(framework), true).total
    return published(Path(name), asked, Cluster.named(cluster), framework, step_time_s=times)


def test_a_gpu_brings_its_rates_and_a_framework_its_host_to_where_both_are_new_together() -> None:
    own, other = ("fsdp", "dgx_a100"), ("axonn", "dgx_h100")
    parts = parts_of([made("a", *where, size) for where in (own, other) for size in SIZES])
    found = transferred(parts, Cluster.named("alps"), framework_named("fsdp"))
    # Of the H100, by the other framework, and so half-way to the prior.
    assert 0.7 < found.gemm_share < 0.8 < PRIOR.gemm_share
    assert found.launch_s > 2 * PRIOR.launch_s  # of the framework, on the other GPU
    assert found.inter_node_share == PRIOR.inter_node_share  # a network's, and it is not known
    nowhere = transferred(parts, Cluster.named("frontier"), framework_named("nanotron"))
    assert nowhere.launch_s == PRIOR.launch_s
    kinds = [
        transferred(parts, Cluster.named(c), framework_named("nanotron")).gemm_share
        for c in ("dgx_a100", "dgx_h100")
    ]
    # Each is half-way between its runs and the prior, which counts once beside both.
    runs = [kind**2 / PRIOR.gemm_share for kind in kinds]
    every = np.exp(np.log([*runs, PRIOR.gemm_share]).mean())
    assert nowhere.gemm_share == pytest.approx(every, rel=1e-3)
    assert transferred([], Cluster.named("frontier"), framework_named("nanotron")) == PRIOR


def test_a_deviation_of_each_models_own_is_integrated_out() -> None:
    models = np.array(["a"] * 5 + ["b"] * 2)
    residuals = np.random.default_rng(3).normal(0.3, 0.2, (4, 7))
    found = without_common(residuals, models)
    same = models[:, None] == models
    covariance = NOISE_LOG_SD**2 * np.eye(7) + MODEL_LOG_SD**2 * same
    for row, scaled in zip(residuals, found, strict=True):
        expected = NOISE_LOG_SD**2 * row @ np.linalg.solve(covariance, row)
        assert np.sum(np.square(scaled)) == pytest.approx(expected)


def test_one_slow_model_moves_constants_less_than_all_of_its_rows_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = made("a", "fsdp", "dgx_h100", SIZES[0])
    slow = replace(slow, step_time_s=1.5 * slow.step_time_s)
    parts = parts_of([slow, *(made("b", "fsdp", "dgx_h100", size) for size in SIZES[1:])])
    with_deviation = shared(parts).gemm_share
    monkeypatch.setattr("benchmarks.cost_model.transfer.MODEL_LOG_SD", 0.0)
    assert with_deviation > 1.05 * shared(parts).gemm_share


def test_constants_are_of_a_framework_or_of_a_gpu_or_of_a_network() -> None:
    assert not set(OF_FRAMEWORK) & set(OF_GPU)
    assert gpu_kind(Cluster.named("alps")) == gpu_kind(Cluster.named("dgx_h200")) == 989


def test_what_is_learnt_for_a_table_has_no_row_of_it_nor_of_its_models() -> None:
    own, other = made("a", "fsdp", "dgx_a100", 8192), made("b", "fsdp", "dgx_h100", 8192)
    (fold,) = from_others(own, [own, other, made("c", "fsdp", "dgx_h100", 5120)])
    assert [t.name for t in fold.train] == ["c"]
    assert len(fold.asked) == len(own)


def test_what_is_new_in_machine_and_framework_is_predicted_from_what_shares_neither() -> None:
    own = made("a", "fsdp", "dgx_a100", 8192)
    others = [
        own,
        made("same framework", "fsdp", "dgx_h100", 8192),
        made("same GPU", "nanotron", "jean_zay_a100", 8192),
        made("neither", "nanotron", "dgx_h100", 8192),
    ]
    (fold,) = leave_both_out(own, others)
    assert [t.name for t in fold.train] == ["neither"]
    assert fold.rows.all()


def test_an_interval_covers_the_rows_within_it() -> None:
    nan = float("nan")
    assert covered([0.9, 1.8, nan, 0.9], [1.2, 2.2, 1.2, 1.2], [1.1, 1, 1, nan]) == 0.5


def test_the_true_95_percent_has_the_best_score() -> None:
    measured = np.exp(np.random.default_rng(3).standard_normal(50_000))

    def score(edge: float) -> float:
        low, high = np.full((2, len(measured)), np.exp(edge)) ** [[-1], [1]]
        return interval_score(low, high, measured)

    assert score(1.96) < min(score(1.7), score(2.3))
    assert interval_score([1.0], [np.e**2], [np.e**3]) == pytest.approx(2 + 40 * 1)


def test_a_framework_has_its_constants_where_it_was_fitted_and_what_transfers_elsewhere() -> None:
    at_home = cost_model(Cluster.named("dgx_h100"), framework_named("nanotron"))
    abroad = cost_model(Cluster.named("perlmutter"), framework_named("nanotron"))
    assert at_home.covariance is not None and at_home.log_sd != abroad.log_sd
    assert abroad.covariance is None
    assert abroad.constants.inter_node_share == PRIOR.inter_node_share
    assert abroad.memory.constants == at_home.memory.constants
    other = cost_model(Cluster.named("perlmutter"), framework_named("fsdp"))
    assert abroad.constants.gemm_share == other.constants.gemm_share != PRIOR.gemm_share
    unknown = cost_model(Cluster.named("tiny_cpu"), framework_named("meshtune"))
    assert unknown.constants.step_s == PRIOR.step_s and unknown.log_sd == abroad.log_sd
    assert fitted_tables()["h100_nanotron_sweep"] > 0
