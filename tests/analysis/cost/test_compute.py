"""Products and attention of one GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.cost.compute import Compute, ComputeConstants
from analysis.sweeps.gpus import cluster_of
from benchmarks.cost_model.statements import gpt_shape
from search_spaces import FRAMEWORKS
from trainer.plan.jobs import jobs

TRUTH = Path(__file__).parents[4] / "shared" / "truth"
MEGATRON = FRAMEWORKS["megatron-lm"]
SHAPE = {**gpt_shape(4, 1024, 16, 8192), **dict.fromkeys(("tp", "pp", "dp", "mbs", "gas"), 1)}


def test_products_of_any_shape_take_what_seven_gpus_measured() -> None:
    """In 16 bits, the rate of each GPU known from one half of its products, the others judged."""
    file = TRUTH / "nvidia_gemm_aiconfigurator.csv"
    if not file.exists():
        pytest.skip("the folder of measured tables is not here")
    table = pd.read_csv(file, comment="#")
    errors = {}
    for gpu, rows in table[table["dtype"] == "bfloat16"].groupby("gpu"):
        compute = Compute(cluster_of(str(gpu)), MEGATRON, ComputeConstants())
        measured_s = rows["latency_ms"].to_numpy() * 1e-3
        start_s = compute.constants.product_s
        one_s = compute.gemm_s(*(rows[n].to_numpy(float) for n in "mnk"), np.ones(1)) - start_s
        known = np.arange(len(rows)) % 2 == 0
        rate = np.median(one_s[known] / np.maximum(measured_s[known] - start_s, 1e-7))
        errors[gpu] = np.abs(np.log((one_s / rate + start_s) / measured_s)[~known]).mean()
    assert len(errors) == 7
    assert np.mean([*errors.values()]) < 0.1, errors


def test_a_ring_slows_attention_by_its_share() -> None:
    one, ring = jobs({**SHAPE, "cp": 1}), jobs({**SHAPE, "cp": 2})

    def attention(share: float) -> list[float]:
        compute = Compute(cluster_of("h100"), MEGATRON, ComputeConstants(ring_share=share))
        return [float(compute.forward(job).attention[0]) for job in (one, ring)]

    whole, halved = attention(1.0), attention(0.5)
    assert halved[0] == whole[0] == pytest.approx(2 * whole[1])
    assert halved[1] == pytest.approx(2 * whole[1])
