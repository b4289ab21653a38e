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

from trainer.plan.axes.mesh import Axes, beside_dp, ordered, ranks_of_replica

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
        assert own == [list(axes.group("dp", size, apart).of(rank))]


def test_strides_are_the_ranks_of_the_axes_inside() -> None:
    assert [FOUR.stride(name) for name in FOUR.sizes] == [1, 2, 6, 24]
    assert [INSIDE.stride(name) for name in INSIDE.sizes] == [1, 4, 12, 2]
    assert FOUR.world_size == INSIDE.world_size == 48


def test_ranks_with_the_same_weights_are_those_of_dp_and_cp() -> None:
    states = FOUR.of_states
    assert INSIDE.of_states.groups("dp")[0] == list(range(0, 48, 4))
    assert states.sizes == {"tp": 2, "dp": 12, "pp": 2}
    assert states.groups("dp")[0] == list(range(0, 24, 2))
    assert all(set(ranks) <= set(states.group("dp").of(ranks[0])) for ranks in FOUR.groups("cp"))


def test_sizes_may_be_columns() -> None:
    axes = Axes({"tp": np.array([1, 2]), "dp": np.array([8, 2]), "pp": np.array([1, 4])})
    assert axes.world_size.tolist() == [8, 16]
    assert axes.stride("pp").tolist() == [8, 4]
    orders = Axes({"tp": 2, "dp": 8, "pp": 4}, pp_inside=np.array([False, True]))
    assert orders.stride("pp").tolist() == [16, 2] and orders.stride("dp").tolist() == [2, 8]


def test_an_axis_of_ones_own_lies_between_tp_and_dp_and_counts_in_a_replica() -> None:
    assert ordered() == ("tp", "dp", "pp")
    assert ordered(["cp", "ep"]) == ("tp", "cp", "ep", "dp", "pp")
    assert beside_dp(["cp"]) == ("tp", "cp", "pp")
    assert ranks_of_replica({"tp": 2, "cp": 3, "pp": 4, "dp": 100}, ["cp"]) == 24


REPOSITORY = Path(__file__).parents[3]
Edits = dict[str, list[tuple[str, str]]]
"""By file, a text and the one in its place."""


def run_edited(folder: Path, edits: Edits, added: dict[str, str], program: str) -> None:
    """Run a program with edited copies of two packages; it fails where an assertion does."""
    for package in ("trainer", "analysis"):
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / package, folder / package, ignore=skip)
    for name, changes in edits.items():
        text = (folder / name).read_text()
        for before, after in changes:
            assert before in text, (name, before)
            text = text.replace(before, after, 1)
        (folder / name).write_text(text)
    for name, text in added.items():
        (folder / name).write_text(text)
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, folder / "program.py"],
        env={**os.environ, "PYTHONPATH": f"{folder}:{REPOSITORY}:{REPOSITORY / 'tests'}"},
        cwd=folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def space(parameters: str) -> str:
    return f"""
version: 1
name: further
model: tiny
cluster: {{name: toy, gpus_per_node: 8, memory_gib: 1, peak_fp32_tflops: 0.1}}
trainer: {{builtin: {{data: python-source, precision: fp32, device: cpu}}}}
parameters: {{{parameters}}}
objective: {{maximize: tokens_per_second}}
"""


AXIS = """
from trainer.plan.axes.axis import Axis, Exchanges
from trainer.plan.exchange import Exchange
from trainer.plan.rules.requirement import Requirement

WHOLE = Requirement(
    "sequence_by_up", "seq_length % up == 0", "not divisible: seq_length {seq_length} by up {up}",
    trainers="builtin", axes=("up",),
)


def layer_exchanges(jobs, habits):
    group = jobs.layout.axes.group("up")
    return (Exchange("tensor", "all_gather", group, jobs.activation_bytes, 2),)


AXIS = Axis("up", "tensor", layer_exchanges, (WHOLE,))
"""
PLACES: Edits = {
    "trainer/plan/axes/mesh.py": [
        ('FURTHER_AXES = ("cp",)', 'FURTHER_AXES = ("up", "cp")'),
        ("SPLIT_TOKENS = (", 'SPLIT_TOKENS = ("up", '),
    ],
    "trainer/plan/fields.py": [("    pp: Annotated[", "    up: Ranks = 1\n    pp: Annotated[")],
}
WITH_AXIS = """
from pathlib import Path

from support.sent_bytes import sent_bytes
from search_spaces import load_space
from search_spaces.known import framework_named
from trainer.plan.config import TrainConfig
from trainer.plan.jobs import jobs
from trainer.plan.limits import ConfigError

# The trainer numbers its ranks by it, and refuses what leaves no whole replicas.
space = load_space(Path("space.yaml"))
config = TrainConfig.model_construct(tp=2, up=2, pp=1)
assert config.axes(8).sizes == {"tp": 2, "up": 2, "cp": 1, "dp": 2, "pp": 1}
assert config.axes(8).groups("up")[0] == [0, 2]
try:
    config.axes(6)
    raise SystemExit("6 ranks")
except ConfigError as error:
    assert "tp 2 * up 2" in str(error)

# A space searches it, with the same rules.
def broken(up):
    return space.first_violation({"tp": 2, "up": up, "pp": 1, "mbs": 1, "gas": 2})

assert space.facts({"tp": 2, "up": 2, "pp": 1, "mbs": 1, "gas": 2})["dp"] == 2
assert "tp * up" in broken(3)
assert "sequence_by_up" in {rule.name for rule in space.rules}

# The cost model lays its groups over the same ranks, splits tokens and prices what they exchange.
habits = framework_named("meshtune")
shape = {"tp": 2, "pp": 1, "world_size": 8, "mbs": 1, "gas": 2, "zero_stage": 0}
alone, split = (jobs({"up": up, **shape}, space.model) for up in (1, 2))
assert split.layout.axes.group("dp").stride.tolist() == [4] and split.layout.dp.tolist() == [2]
assert (alone.tokens / split.tokens).tolist() == [2]
sums, more = (sent_bytes(job, habits)["tensor"].item() for job in (alone, split))
layers = space.model.num_layers
assert more == sums / 2 + 2 * layers * 2 * split.activation_bytes.item() / 2
"""


def test_an_axis_is_a_file_a_place_among_the_ranks_and_a_degree(tmp_path: Path) -> None:
    """Rules, spaces, prices and predicted bytes follow; what executes it is the trainer's."""
    searched = space("tp: [1, 2], up: [1, 2, 3], pp: [1, 2], mbs: 1, gas: 2")
    added = {"trainer/plan/axes/up.py": AXIS, "space.yaml": searched}
    run_edited(tmp_path, PLACES, added, WITH_AXIS)


SETTING: Edits = {
    "trainer/plan/fields.py": [
        (
            "    pp: Annotated[",
            "    halve_keys: Annotated[bool, Column()] = False\n    pp: Annotated[",
        )
    ],
    "trainer/plan/axes/cp.py": [
        ("    keys = 2 *", "    keys = np.where(jobs.options.halve_keys, 1, 2) *")
    ],
}
WITH_SETTING = """
from pathlib import Path

import numpy as np

from support.sent_bytes import sent_bytes
from analysis.prediction.columns import jobs_from
from search_spaces import load_space
from search_spaces.known import framework_named
from trainer.plan.config import TrainConfig

space = load_space(Path("space.yaml"))
point = {"cp": 2, "tp": 1, "pp": 1, "mbs": 1, "gas": 2}
both = {name: np.full(2, value) for name, value in point.items()}
both["halve_keys"] = np.array([False, True])
jobs = jobs_from(space, space.model, ["meshtune"], both)
assert jobs.options.halve_keys.tolist() == [False, True]
whole, halved = sent_bytes(jobs, framework_named("meshtune"))["context"]
assert halved == whole / 2 > 0
assert jobs[1:].columns()["halve_keys"].tolist() == [1]
assert TrainConfig.model_fields["halve_keys"].default is False
"""


def test_a_setting_that_changes_an_exchange_is_a_field_and_a_line_of_its_axis(
    tmp_path: Path,
) -> None:
    """Spaces search it and it is priced; a third file, in the trainer, executes it."""
    searched = space("cp: [1, 2], tp: 1, pp: 1, mbs: 1, gas: 2, halve_keys: [false, true]")
    run_edited(tmp_path, SETTING, {"space.yaml": searched}, WITH_SETTING)
