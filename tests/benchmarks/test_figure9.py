"""Dash et al. 2023, section IV, on a simulated Frontier; one seed of three may be unlucky."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from analysis.report.outcomes import trajectory
from benchmarks.search.figure9 import HOUR_S, TABLE_4, course, failure_share, picture, simulate
from search_spaces import load_space
from workflows.search.budget import Budget
from workflows.simulation.workload import simulated_launcher

SEEDS = range(3)
WIDE = "gpt_175b_frontier"
RECIPE = {  # Table V; the space's own names
    "num_nodes": 16, "tp": 4, "pp": 16, "vpp": 1, "mbs": 1, "gas": 320, "zero_stage": 1,
    "sequence_parallel": False, "recompute": "full",
}  # fmt: skip


@pytest.mark.heavy
def test_with_deephyper_failures_fall_and_the_best_rises_as_in_figure_9() -> None:
    falls = rises = 0
    for seed in SEEDS:
        found = course(simulate(TABLE_4, "deephyper", seed, Budget(wall_time_s=HOUR_S)))
        # Of all configurations 95 % fail, and of random choice at any time.
        assert found["failed_first_third"] > 0.8
        falls += found["failed_last_third"] < 0.7
        rises += found["best"] > found["first_successes"]
        if min(falls, rises) >= 2:
            return
    pytest.fail(f"of three searches failures fell in {falls}, and the best rose in {rises}")


@pytest.mark.heavy
def test_in_the_wide_space_the_search_ends_in_the_hand_recipes_neighbourhood() -> None:
    options = "nodes=128,model_error=1,misfit=0.1"
    near = 0
    for seed in SEEDS:
        best = simulate(WIDE, "meshtune", seed, Budget(trials=20), options).best
        assert best is not None and best.objective is not None
        at: dict[str, Any] = best.config
        same = at["tp"] in (4, 8) and at["pp"] >= 8 and at["mbs"] <= 2 and at["gas"] >= 80
        near += same and best.objective > 0.95 * tflops_of_recipe(f"{options},seed={seed}")
        if near >= 2:
            return
    pytest.fail(f"of three searches {near} ended there")


def tflops_of_recipe(options: str) -> float:
    """What the recipe would reach there, whether it fits or not."""
    workload = simulated_launcher(load_space(WIDE), f"{options},time=1h").workload
    price = workload.price(RECIPE)
    return float(workload.figures(RECIPE, [price.step_time_s], price.peak_bytes)["tflops_per_gpu"])


def test_the_failure_share_is_of_the_last_window_and_ignores_lost_nodes() -> None:
    kinds = pd.Series(["oom", "ok", "node_failure", "crash", "ok", "ok", "ok"])
    expected = [1, 1 / 2, 1 / 2, 2 / 3, 2 / 4, 2 / 5, 1 / 5]
    assert failure_share(kinds).tolist() == pytest.approx(expected)


def test_the_picture_has_a_column_for_every_policy_and_both_kinds_of_ends() -> None:
    run = simulate(TABLE_4, "random", 0, Budget(trials=60))
    assert {"ok", "oom"} <= set(trajectory(run)["kind"])
    figure = picture({"random": run, "deephyper": run})
    assert len(figure.axes) == 4
    assert figure.axes[0].get_title() == f"random: 60 trials, {failed_share(run):.0%} failed"


def failed_share(run: Any) -> float:
    kinds = trajectory(run)["kind"]
    return float((kinds != "ok").mean())
