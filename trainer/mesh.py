"""Where each rank stands: the one place that decides ranks, degrees and process groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainer.config import TrainConfig

Group = dist.ProcessGroup


@dataclass(frozen=True)
class Axis:
    """One axis of the mesh, as this rank sees it; ``group`` is None when it has one rank."""

    size: int
    rank: int
    group: Group | None


@dataclass(frozen=True)
class Mesh:
    """The ranks as a grid (pp, dp, tp).

    Tensor-parallel ranks are neighbours, so that they share a node; pipeline stages are farthest
    apart, since they talk least (Narayanan et al. 2021, section 3).
    """

    device: DeviceMesh
    pp: Axis
    dp: Axis
    tp: Axis
    embedding: Group | None
    """First and last pipeline rank, when they share a tied embedding."""

    @property
    def is_first(self) -> bool:
        return self.pp.rank == 0

    @property
    def is_last(self) -> bool:
        return self.pp.rank == self.pp.size - 1


def build_mesh(config: TrainConfig, device_type: str) -> Mesh:
    """Arrange all ranks of the default process group; every rank must call it.

    Raises:
        ConfigError: if the configuration cannot run on so many ranks.
    """
    world_size = dist.get_world_size()
    config.check(world_size)
    shape = (config.pp, config.data_parallel(world_size), config.tp)
    mesh = init_device_mesh(device_type, shape, mesh_dim_names=("pp", "dp", "tp"))
    embedding = None
    if config.model.tied_embeddings and config.pp > 1:
        grid = mesh.mesh
        ends = [
            [int(grid[0, dp, tp]), int(grid[-1, dp, tp])]
            for dp in range(shape[1])
            for tp in range(shape[2])
        ]
        embedding, _ = dist.new_subgroups_by_enumeration(ends)
    axes = {
        name: Axis(size, mesh.get_local_rank(name), mesh.get_group(name) if size > 1 else None)
        for name, size in zip(("pp", "dp", "tp"), shape, strict=True)
    }
    return Mesh(mesh, axes["pp"], axes["dp"], axes["tp"], embedding)
