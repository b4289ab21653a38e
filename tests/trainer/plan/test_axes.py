"""Parallel axes: groups tile the ranks, and a rank finds its own among them."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from trainer.plan.axes import SPLITS, Axes, beside_dp, ordered, ranks_of_replica

FOUR = Axes({"tp": 2, "cp": 3, "dp": 4, "pp": 2})
INSIDE = Axes(FOUR.sizes, pp_inside=True)


@pytest.mark.parametrize("axes", [FOUR, INSIDE])
@pytest.mark.parametrize("name", FOUR.sizes)
def test_the_groups_of_an_axis_hold_every_rank_once(name: str, axes: Axes) -> None:
    groups = axes.groups(name)
    assert sorted(itertools.chain(*groups)) == list(range(axes.world_size))
    for ranks in groups:
        assert [axes.place(rank, name) for rank in ranks] == list(range(axes.sizes[name]))
        others = {tuple(axes.place(r, o) for o in axes.sizes if o != name) for r in ranks}
        assert len(others) == 1, "members differ in this axis only"


@pytest.mark.parametrize("axes", [FOUR, INSIDE])
@pytest.mark.parametrize(("size", "apart"), [(4, 1), (2, 1), (2, 2), (1, 1)])
def test_a_rank_finds_its_own_group(size: int, apart: int, axes: Axes) -> None:
    groups = axes.groups("dp", size, apart)
    for rank in range(axes.world_size):
        own = [ranks for ranks in groups if rank in ranks]
        assert own == [list(axes.group_of(rank, "dp", size, apart))]


def test_strides_are_the_ranks_of_the_axes_inside() -> None:
    assert [FOUR.stride(name) for name in FOUR.sizes] == [1, 2, 6, 24]
    assert [INSIDE.stride(name) for name in INSIDE.sizes] == [1, 4, 12, 2]
    assert FOUR.world_size == INSIDE.world_size == 48
    assert FOUR.outermost_first == ("pp", "dp", "cp", "tp")
    assert INSIDE.outermost_first == ("dp", "cp", "pp", "tp")


def test_ranks_with_the_same_weights_are_those_of_dp_and_cp() -> None:
    states = FOUR.of_states
    assert INSIDE.of_states.groups("dp")[0] == list(range(0, 48, 4))
    assert states.sizes == {"tp": 2, "dp": 12, "pp": 2}
    assert states.groups("dp")[0] == list(range(0, 24, 2))
    assert all(set(ranks) <= set(states.group_of(ranks[0], "dp")) for ranks in FOUR.groups("cp"))


def test_sizes_may_be_columns() -> None:
    axes = Axes({"tp": np.array([1, 2]), "dp": np.array([8, 2]), "pp": np.array([1, 4])})
    assert axes.world_size.tolist() == [8, 16]
    assert axes.stride("pp").tolist() == [8, 4]
    orders = Axes({"tp": 2, "dp": 8, "pp": 4}, pp_inside=np.array([False, True]))
    assert orders.stride("pp").tolist() == [16, 2] and orders.stride("dp").tolist() == [2, 8]


def test_an_axis_of_ones_own_lies_between_tp_and_dp_and_counts_in_a_replica() -> None:
    assert ordered() == tuple(SPLITS) == ("tp", "dp", "pp")
    assert ordered(["cp", "ep"]) == ("tp", "cp", "ep", "dp", "pp")
    assert beside_dp(["cp"]) == ("tp", "cp", "pp")
    assert ranks_of_replica({"tp": 2, "cp": 3, "pp": 4, "dp": 100}, ["cp"]) == 24


ROWS = {
    "trainer/plan/axes.py": ('    "dp": "the batch', '    "ep": "the sequence",\n'),
    "trainer/plan/fields.py": ("    pp: Annotated", "    ep: Ranks = 1\n"),
    "analysis/cost/jobs.py": ("    pp: Array\n", "    ep: Array\n"),
}
"""By file: the line before which an axis of the built-in trainer has its row."""


def test_an_axis_of_the_built_in_trainer_is_a_row_and_a_degree(tmp_path: Path) -> None:
    """Copies of two packages with the axis: rules, spaces and the cost model's groups know it."""
    repository = Path(__file__).parents[3]
    for package in ("trainer", "analysis"):
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(repository / package, tmp_path / package, ignore=skip)
    for name, (before, row) in ROWS.items():
        head, line, tail = (tmp_path / name).read_text().partition(before)
        assert line, name
        (tmp_path / name).write_text(head + row + line + tail)
    (tmp_path / "space.yaml").write_text(SPACE)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{repository}"},
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


SPACE = """
version: 1
name: context
model: tiny
cluster: {name: toy, gpus_per_node: 8, memory_gib: 1, peak_fp32_tflops: 0.1}
trainer: {builtin: {data: python-source, precision: fp32, device: cpu}}
parameters: {tp: [1, 2], ep: [1, 2, 3], pp: [1, 2], mbs: 1, gas: 2}
objective: {maximize: tokens_per_second}
"""
PROGRAM = """
from pathlib import Path

from analysis.cost.groups import along
from analysis.cost.jobs import jobs
from search_spaces import load_space
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError

# The trainer numbers its ranks by it, and refuses what leaves no whole replicas.
space = load_space(Path("space.yaml"))
config = TrainConfig.model_construct(tp=2, ep=2, pp=1)
assert config.axes(8).sizes == {"tp": 2, "cp": 1, "ep": 2, "dp": 2, "pp": 1}
assert config.axes(8).groups("ep")[0] == [0, 2]
try:
    config.axes(6)
    raise SystemExit("6 ranks")
except ConfigError as error:
    assert "tp 2 * ep 2 * pp 1" in str(error)

# A space searches it, with the same rule.
assert space.facts({"tp": 2, "ep": 2, "pp": 1, "mbs": 1, "gas": 2})["dp"] == 2
broken = space.first_violation({"tp": 2, "ep": 3, "pp": 1, "mbs": 1, "gas": 2})
assert broken and "tp * ep * pp" in broken

# The cost model lays its groups over the same ranks.
shape = {"mbs": 1, "gas": 2, "optimizer_shard": 1, "gradient_shard": 1, "weight_shard": 1}
job = jobs({"tp": 2, "ep": 2, "pp": 1, "world_size": 8, **shape}, space.model)
assert along(job.axes, "dp").stride.tolist() == [4] and job.dp.tolist() == [2]
"""
