"""Typed parameters, and metrics that compare across batches, as the page's figures read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.cost.roofline import roofline
from analysis.prediction.pricing import Pricing
from analysis.report import figures
from analysis.report.encoding import encode
from analysis.run.frame import frame_of
from search_spaces import Candidates, load_space
from support.run_book import RunBook


def unpacked(told: dict[str, Any]) -> dict[str, list[float]]:
    """The metrics' columns, as the page's script has them."""
    known = {"objective": [np.nan if x is None else x for x in told["objective"]]}
    for name, metric in told["metrics"].items():
        known[name] = of = metric["of"]
        if isinstance(of, dict):
            known[name] = [of["times"] * x ** of["power"] for x in known[of["name"]]]
    return known


def test_metrics_are_those_of_the_plan_and_the_results(tmp_path: Path) -> None:
    pricing = Pricing(load_space("gpt_22b_frontier"))
    configs = Candidates(pricing.space).draw(6, np.random.default_rng(0), [], 10**6)
    book = RunBook(tmp_path / "run", {"maximize": "tokens_per_second"})
    for n, raw in enumerate(configs):
        result = {
            "tokens_per_second": 1e4 * (n + 1), "tflops_per_gpu": 40.0 + n,
            "peak_memory_bytes": 2.0**30 * n, "step_time_s": {"median": 2.0 + n},
        }  # fmt: skip
        book.propose(n, pricing.space.canonical(raw))
        book.start(n, nodes=["a", "b"])
        book.t += 1800
        if n == 3:
            book.end(n, "oom")
        else:
            book.end(n, "ok", 1e4 * (n + 1), result=result)
    run = book.read()
    told = figures.trials(run, frame_of(run), pricing)
    metrics = unpacked(told)
    assert told["number"] == [0, 1, 2, 3, 4, 5]
    ran = [0, 1, 2, 4, 5]
    assert pricing.space.cluster is not None and pricing.space.cluster.peak_bf16_tflops
    peak = pricing.space.cluster.peak_bf16_tflops
    roof = roofline(pricing.model, pricing.jobs_of([configs[n] for n in ran]))
    for row, n in enumerate(ran):
        assert metrics["us_per_token"][n] == pytest.approx(1e6 / (1e4 * (n + 1)))
        assert metrics["mfu"][n] == pytest.approx((40 + n) / peak)
        assert metrics["peak_memory_bytes"][n] == n  # GiB, and nothing is not unknown
        assert metrics["intensity"][n] == pytest.approx(roof.intensity[row])
        assert metrics["attained"][n] == pytest.approx(roof.flops[row] / (2 + n) / 1e12)
    assert all(np.isnan(metrics[name][3]) for name in ("us_per_token", "mfu", "attained"))
    assert metrics["node_hours"] == [1.0] * 6
    assert told["metrics"]["attained"]["limits"]["peak_tflops"] == peak


def test_parameters_have_types_by_their_values() -> None:
    many = np.linspace(1, 40, 30)
    frame = pd.DataFrame(
        {
            "p:lr": 10.0 ** -(1 + many / 10), "p:decay": many, "p:tp": [1, 2, 4] * 10,
            "p:optimizer": ["adam", "lion"] * 15, "p:recompute": ["none", "full"] * 15,
            "p:sp": [False, True] * 15, "p:warmup": [None, *range(1, 30)],
        }
    )  # fmt: skip
    encoded = encode(frame)
    assert encoded.types == {
        "lr": "logarithmic", "decay": "continuous", "tp": "ordered", "optimizer": "categorical",
        "recompute": "ordered", "sp": "ordered", "warmup": "continuous",
    }  # fmt: skip
    assert encoded.levels("warmup")["numbers"][:3] == [None, 1.0, 2.0]
    assert "numbers" not in encoded.levels("tp")
    lr = encoded.levels("lr")
    assert [lr["numbers"][i] for i in lr["of"]] == frame["p:lr"].tolist()


def test_what_is_drawn_is_written_with_four_digits_and_what_filters_compare_with_six() -> None:
    record = {
        "objective": [211922.9],
        "metrics": {"mfu": {"of": [0.123456789, 8, np.nan]}},
        "expected": [211922.9],
    }
    written = (
        '{"objective":[211922.9],"metrics":{"mfu":{"of":[0.123457,8,null]}},"expected":[211900.0]}'
    )
    assert figures.embedded(record) == written
