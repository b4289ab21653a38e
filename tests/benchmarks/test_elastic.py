"""An elastic training on a virtual clock: the formula tells what is kept."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from analysis import read_run
from benchmarks.elastic import virtual
from benchmarks.elastic.__main__ import told
from support.elastic_run import searched
from workflows.elastic import useful_share


@pytest.mark.heavy
def test_the_share_that_is_told_from_what_a_training_measured_is_within_two_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = searched(tmp_path, gpus_per_node=1), tmp_path / "out"
    one_s = 2**virtual.SPEED_UP * 0.032  # its trial was on two nodes, and took 9 s
    monkeypatch.setattr(virtual, "START_UP", 8.0 / one_s)
    done = virtual.train(run, out, one_s, 120.0, 30, random.Random(1))
    assert len(done) >= 30 and {*done} == {"node", "rank", "driver", "job"}
    training = read_run(out)
    starts = training.trials.values()
    share = useful_share(training, training.trials[max(training.trials)].result["saved"])
    assert share is not None and 0.7 < share < 0.95
    assert told(training, run) == pytest.approx(share, abs=0.02)
    assert len({len(start.attempts[-1].nodes) for start in starts}) > 1
    begun = [start.result["finished_before"] for start in starts if "step_time_s" in start.result]
    assert begun == sorted(begun) and begun[0] == 0
