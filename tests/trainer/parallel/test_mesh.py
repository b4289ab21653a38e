"""Groups of data-parallel ranks, as any rank of a large job sees them (torch's fake groups)."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainer.parallel.collectives import Traffic
from trainer.parallel.mesh import Mesh, build_mesh
from trainer.plan.config import TrainConfig

DESERTED = Path(__file__).parents[2] / "support/deserted_groups.py"
MODEL = {"num_layers": 4, "hidden_size": 16, "num_heads": 4, "vocab_size": 32, "seq_length": 8}
Build = Callable[..., Mesh]
# Fake groups never wait.
pytestmark = pytest.mark.filterwarnings("ignore:Set timeout is now only supported")


@pytest.fixture
def build() -> Iterator[Build]:
    def build(ranks: int, rank: int, **values: Any) -> Mesh:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
        config = TrainConfig.parse(
            {
                "model": MODEL,
                "data": "unused",
                "precision": "fp32",
                "ranks_per_node": 8,
                "ranks_per_pair": 2,
                **values,
            }
        )
        return build_mesh(config, torch.device("cpu"), None, Traffic())

    yield build
    dist.destroy_process_group()


def test_axes_are_laid_out_with_tensor_ranks_nearest_and_stages_farthest(build: Build) -> None:
    mesh = build(32, 13, tp=2, pp=2)
    assert mesh.tp.group.ranks == (12, 13)
    assert mesh.states.group.ranks == (1, 3, 5, 7, 9, 11, 13, 15)
    assert mesh.pp.group.ranks == (13, 29)
    levels = [axis.group.level for axis in (mesh.tp, mesh.states, mesh.pp)]
    assert levels == ["pair", "inter_node", "inter_node"]


@pytest.mark.parametrize(
    ("size", "stride", "ranks", "level"),
    [
        (2, 1, (24, 26), "node"),
        (4, 1, (24, 26, 28, 30), "node"),
        (2, 2, (26, 30), "node"),
        (2, 4, (18, 26), "inter_node"),
        (8, 1, (16, 18, 20, 22, 24, 26, 28, 30), "inter_node"),
    ],
)
def test_a_group_of_replicas_is_the_ranks_own_block(
    build: Build, size: int, stride: int, ranks: tuple[int, ...], level: str
) -> None:
    group = build(32, 26, tp=2, pp=2).replicas(size, stride, "main")
    assert (group.ranks, group.level, group.size) == (ranks, level, size)
    assert group.ranks[group.rank] == 26


def test_threads_have_groups_of_their_own_and_share_them_within(build: Build) -> None:
    mesh = build(16, 3)
    gather, reduce = mesh.replicas(16, 1, "gather"), mesh.replicas(16, 1, "reduce")
    assert gather.ranks == reduce.ranks == mesh.replicas(16, 1, "main").ranks
    assert len({gather.handle, reduce.handle, mesh.states.group.handle}) == 3
    assert mesh.replicas(16, 1, "gather") is gather
    assert mesh.replicas(1, 8, "gather") is None


def test_an_accelerators_streams_share_one_communicator(build: Build) -> None:
    mesh = build(16, 3)
    accelerator = dataclasses.replace(mesh, device=torch.device("cuda"))
    assert accelerator.replicas(16, 1, "gather") is mesh.states.group
    assert accelerator.replicas(16, 1, "reduce") is mesh.states.group
    assert accelerator.replicas(4, 1, "gather") is accelerator.replicas(4, 1, "reduce")


@pytest.mark.parametrize(
    ("values", "made"),
    [
        ({"zero_stage": 3}, 0),
        ({"tp": 4}, 2),
        ({"tp": 4, "pp": 4, "cp": 2, "gas": 4}, 5),  # tp, pp, dp with cp, cp, the ends
        ({"gx": 2, "gy": 2, "gz": 2, "mbs": 2}, 4),
    ],
)
def test_a_rank_of_a_large_job_makes_one_group_an_axis_and_none_of_one_rank(
    build: Build, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], made: int
) -> None:
    calls: list[tuple[int, ...]] = []
    own = dist.new_group

    def counted(ranks: list[int], **options: Any) -> Any:
        calls.append(tuple(ranks))
        return own(ranks, **options)

    monkeypatch.setattr(dist, "new_group", counted)
    mesh = build(1024, 0, **values)
    assert len(calls) == made and len(set(calls)) == made
    assert all(1 < len(ranks) < 1024 for ranks in calls)
    assert mesh.states.group.size == mesh.states.size


def test_an_accelerator_splits_all_groups_of_an_axis_off_the_world_at_once(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NCCL wants it: every rank of the world takes part in each split."""
    splits: list[list[list[int]]] = []

    def split(split_ranks: list[list[int]], timeout: timedelta) -> Any:
        splits.append(split_ranks)
        inside = next((ranks for ranks in split_ranks if 5 in ranks), None)
        return inside and dist.new_group(inside, timeout=timeout, use_local_synchronization=True)

    start = dist.init_process_group

    def bound(*args: Any, **options: Any) -> None:
        start(*args, **options)
        dist.group.WORLD.bound_device_id = torch.device("cuda", 0)

    monkeypatch.setattr(dist, "init_process_group", bound)
    monkeypatch.setattr(dist, "split_group", split)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    mesh = build(16, 5, pp=4, tp=2)
    assert [sorted(rank for one in every for rank in one) for every in splits[:3]] == [
        [*range(16)]
    ] * 3
    assert mesh.embedding is None and splits[3] == [[0, 12], [1, 13], [2, 14], [3, 15]]


def test_every_group_gives_up_after_the_timeout_that_was_asked_for() -> None:
    ended = subprocess.run(
        [sys.executable, DESERTED], capture_output=True, text=True, timeout=250, check=True
    )
    assert json.loads(ended.stdout) == ["states", "cp", "tp", "pp", "lane", "embedding"]


def test_only_the_ends_of_a_pipeline_share_the_tied_embedding(build: Build) -> None:
    assert build(16, 1, pp=4).embedding.ranks == (1, 13)


def test_between_the_ends_nobody_has_the_embedding(build: Build) -> None:
    assert build(16, 5, pp=4).embedding is None
