"""An elastic training on a virtual clock: the formula tells what is kept."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from analysis import read_run
from benchmarks.elastic import virtual
from benchmarks.elastic.__main__ import planned, told
from support.elastic_run import searched
from workflows.elastic import useful_share


@pytest.mark.heavy
def test_the_share_that_is_told_from_what_a_training_measured_is_within_two_points(
    tmp_path: Path,
) -> None:
    run, out = searched(tmp_path, gpus_per_node=1), tmp_path / "out"
    one_s = 2**virtual.SPEED_UP * 0.032  # its trial was on two nodes
    done = virtual.train(run, out, one_s, 300 * one_s, 30, random.Random(1))
    assert len(done) >= 30 and {*done} == {"node", "rank", "driver", "job"}
    training = read_run(out)
    starts = training.trials.values()
    share = useful_share(training, training.trials[max(training.trials)].result["saved"])
    assert share is not None and 0.8 < share < 0.97
    assert told(training, run) == pytest.approx(share, abs=0.02)
    assert planned(training) == pytest.approx(share, abs=0.04)
    assert len({len(start.attempts[-1].nodes) for start in starts}) > 1
    begun = [start.result["finished_before"] for start in starts if "step_time_s" in start.result]
    assert begun == sorted(begun) and begun[0] == 0
