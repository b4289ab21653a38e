"""Jobs replayed on traces of failures, beside the formula."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.prediction.goodput import DAY_S, best_interval_s, useful_share
from benchmarks.goodput.trace import FaultTrace

HOUR_S = 3600.0


def of_hours(num_nodes: int, *faults: tuple[int, float, float]) -> FaultTrace:
    """One day; of each fault the node, the hour it left and the hour it was back."""
    node, start_h, end_h = (np.array(column) for column in zip(*faults, strict=True))
    return FaultTrace(num_nodes, 1.0, node, start_h * HOUR_S, end_h * HOUR_S)


def test_a_failure_costs_the_work_since_the_last_checkpoint_and_a_restart() -> None:
    trace = of_hours(2, (1, 10.5, 11.0))
    # An hour with its checkpoint: ten before it fails, then half an hour to start and thirteen.
    share = trace.useful_share(2, 0.9 * HOUR_S, 0.1 * HOUR_S, 0.5 * HOUR_S)
    assert share == pytest.approx(0.9 * (10 + 13) / 24)


def test_without_a_spare_a_job_waits_for_the_repair() -> None:
    trace = of_hours(2, (0, 6.0, 12.0), (1, 6.0, 12.0))
    assert trace.useful_share(2, HOUR_S, 0.0, 0.0, spares=0) == pytest.approx(18 / 24)
    assert trace.useful_share(1, HOUR_S, 0.0, 0.0, spares=1) == pytest.approx(18 / 24)
    one = of_hours(2, (0, 6.0, 12.0), (1, 13.0, 14.0))
    assert one.useful_share(1, HOUR_S, 0.0, 0.0, spares=1) == pytest.approx(1.0)


@pytest.mark.parametrize("nodes", [16, 64, 256, 400, 4000])
def test_the_formula_agrees_with_replayed_memoryless_failures(nodes: int) -> None:
    trace = FaultTrace.drawn(max(nodes, 400), 348, 0.0042, 5.5)
    assert trace.per_node_day == pytest.approx(0.0042, rel=0.1)
    mtbf_s, cost = DAY_S / (nodes * trace.per_node_day), (30.0, 300.0)
    best_s = float(best_interval_s(mtbf_s, cost[0]))
    for interval_s in (best_s, 6 * HOUR_S):
        told = float(useful_share(mtbf_s, interval_s, *cost))
        assert trace.useful_share(nodes, interval_s, *cost) == pytest.approx(told, abs=0.02)


def test_a_job_larger_than_the_trace_meets_all_its_failures_several_times() -> None:
    trace = FaultTrace.drawn(100, 100, 0.01, 1.0)
    [wide] = trace._groups(400)
    assert len(wide.node) == 4 * len(trace.node) and wide.num_nodes == 400
    assert len(list(trace._groups(30))) == 3
