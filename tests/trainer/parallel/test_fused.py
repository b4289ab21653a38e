"""Products in one operator with their exchanges: where a group cannot, and its workspace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from trainer.model.kernels import Kernels
from trainer.parallel import collectives
from trainer.parallel.collectives import Group, Traffic
from trainer.parallel.products import TensorParallel
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError
from trainer.plan.placement import Level

MODEL = {"num_layers": 2, "hidden_size": 16, "num_heads": 4, "vocab_size": 32, "seq_length": 8}
WORKSPACE = "get_symm_mem_workspace"


def group(backend: str = "nccl", size: int = 2) -> Group:
    handle: Any = SimpleNamespace(rank=lambda: 0, group_name="tp")
    with mock.patch("torch.distributed.get_backend", return_value=backend):
        return Group(handle, range(size), Level.NODE, Traffic())


@pytest.mark.parametrize(
    ("size", "rows", "workspace_rows"),
    [
        (2, 1 << 20, 2 << 20),  # one part of a scattered product is computed, a peer reads another
        (8, 1 << 20, 2 << 20),
        (8, 256, 2048),  # torch may gather so few at once, by multicast
        (8, 100, 800),
        (8, 512, 2048),  # of a part of these rows, if a layer gathers a part
    ],
)
def test_the_workspace_is_made_before_any_pass_and_none_needs_more(
    size: int, rows: int, workspace_rows: int
) -> None:
    found = group(size=size)
    with mock.patch.object(collectives.symmetric, WORKSPACE) as made:
        found.fuse(rows, 6)
    made.assert_called_once_with("tp", 6 * workspace_rows)
    assert found.fused


def test_on_a_cpu_there_is_none() -> None:
    found = group(backend="gloo")
    with mock.patch.object(collectives.symmetric, WORKSPACE) as made:
        found.fuse(1 << 20, 6)
    made.assert_not_called()
    assert found.fused


def test_devices_that_do_not_map_each_others_memory_are_refused_with_a_remedy() -> None:
    """As where Slurm shows each rank one GPU, so that all call theirs the first."""
    found, said = group(), RuntimeError("detected allocations from overlapping devices")
    with (
        mock.patch.object(collectives.symmetric, WORKSPACE, side_effect=said),
        pytest.raises(ConfigError, match=r"overlapping devices\); show each rank all GPUs"),
    ):
        found.fuse(1, 2)
    assert not found.fused


@pytest.mark.parametrize(
    "lost", [dist.DistNetworkError, dist.DistStoreError, dist.DistBackendError]
)
def test_a_peer_that_is_lost_meanwhile_says_nothing_of_the_configuration(
    lost: type[Exception],
) -> None:
    found = group()
    with (
        mock.patch.object(collectives.symmetric, WORKSPACE, side_effect=lost("connection reset")),
        pytest.raises(lost, match="connection reset"),
    ):
        found.fuse(1, 2)
    assert not found.fused


def test_a_bias_is_added_to_a_product_that_has_been_rounded() -> None:
    """In 16 bits that rounds twice, each time by half of the last of 8 bits at most."""
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(size).bfloat16() for size in ((64, 1, 32), (48, 32), (48,)))
    gathered: Any = SimpleNamespace(fused=True, gather_product=lambda x, m, keeps: (x, x @ m))
    found = TensorParallel(gathered, True, Kernels()).column_outputs(x, weight, bias)
    product = torch.nn.functional.linear(x.double(), weight.double())
    once = (product + bias.double()).bfloat16()
    assert torch.equal(found, x @ weight.t() + bias)
    assert not torch.equal(found, once)
    off = (found.double() - product - bias.double()).abs()
    assert torch.all(off <= 2**-8 * (product.abs() + found.double().abs()) + 1e-6)


def test_ranks_of_several_nodes_are_refused() -> None:
    values = {"tp": 2, "sequence_parallel": True, "async_tp": True, "ranks_per_node": 1}
    config = TrainConfig.parse({"model": MODEL, "data": "", **values})
    with pytest.raises(ConfigError, match=r"on nodes of 1 ranks.*set async_tp: false"):
        config.check(2)


@pytest.mark.parametrize("more", [{}, {"sequence_parallel": False}, {"tp": 1}])
def test_without_sequences_over_the_ranks_it_is_refused(more: dict[str, Any]) -> None:
    config = TrainConfig.parse({"model": MODEL, "data": "", "tp": 2, "async_tp": True, **more})
    with pytest.raises(
        ConfigError, match="async_tp without sequence_parallel; set async_tp: false"
    ):
        config.check(2)
    if not more:
        config.model_copy(update={"sequence_parallel": True}).check(2)
