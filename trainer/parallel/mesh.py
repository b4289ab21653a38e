"""The parallel axes of ``trainer.plan.axes`` as torch's device mesh and process groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from trainer.parallel.collectives import Group, Traffic
from trainer.plan.axes.mesh import GRID, Axes
from trainer.plan.config import TrainConfig
from trainer.plan.placement import Placement, Topology

Ranks = list[list[int]]  # of each group


@dataclass(frozen=True)
class MeshAxis:
    """One axis of the mesh, as this rank sees it; ``group`` is None when it has one rank."""

    name: str
    size: int
    rank: int
    group: Group | None


@dataclass(frozen=True)
class Grid:
    """Three axes that share the matrices of a layer; see ``parallel.grid``."""

    x: MeshAxis
    y: MeshAxis
    z: MeshAxis

    @property
    def transposed(self) -> Grid:
        """The grid for every second layer, whose inputs are split as the previous outputs."""
        return Grid(self.y, self.x, self.z)

    @property
    def size(self) -> int:
        return self.x.size * self.y.size * self.z.size


@dataclass(frozen=True)
class HolderGroups:
    """Ranks that hold the same parameters of a class, as this rank sees them.

    All of ``Mesh.states`` hold dense parameters, every ``apart``-th of them an expert
    (``trainer.plan.axes.ep``).
    """

    mesh: Mesh
    placement: Placement  # over these ranks
    rank: int
    apart: int = 1

    @property
    def size(self) -> int:
        return self.placement.dp

    @property
    def counts(self) -> bool:
        """Whether this rank's masters count in global sums: one of the ranks with equal masters."""
        return self.rank < self.placement.optimizer_shard

    def replicas(self, size: int, stride: int, stream: str) -> Group | None:
        """This rank's group of ``size`` of them; see ``Mesh.replicas``."""
        return self.mesh.replicas(size, stride * self.apart, stream)


@dataclass(frozen=True)
class Mesh:
    """This rank's place and groups; ``trainer.plan.axes`` has the order of the axes."""

    device: torch.device
    axes: Axes
    topology: Topology
    placement: Placement
    pp: MeshAxis
    states: MeshAxis  # ranks that hold the same weights: all of dp and cp
    cp: MeshAxis
    tp: MeshAxis
    ep: MeshAxis  # ranks that experts are distributed over, all of ``tp`` among them
    grid: Grid
    world: Group
    traffic: Traffic
    subgroup: Callable[[Ranks], Group | None]  # this rank's group among disjoint ones
    folded: bool  # whether the last stage is on the first pipeline rank, see ``StageLayout``
    embedding: Group | None  # first and last pipeline rank, when they share a tied embedding
    _blocks: dict[tuple[int, int, str], Group | None] = field(default_factory=dict)

    @property
    def replica(self) -> int:
        """Number of this rank's replica, which decides the sequences that it reads."""
        return self.axes.place(dist.get_rank(), "dp")

    @property
    def is_first(self) -> bool:
        return self.pp.rank == 0

    @property
    def is_last(self) -> bool:
        return self.pp.rank == (0 if self.folded else self.pp.size - 1)

    @property
    def inside(self) -> tuple[MeshAxis, ...]:
        """The axes that share one replica's layers."""
        return (self.tp, self.grid.x, self.grid.y, self.grid.z)

    @property
    def dense(self) -> HolderGroups:
        return HolderGroups(self, self.placement, self.states.rank)

    @property
    def experts(self) -> HolderGroups:
        apart = self.ep.size // self.tp.size if self.ep.size > 1 else 1
        return HolderGroups(self, self.placement.among(apart), self.states.rank // apart, apart)

    def holders(self, split: tuple[str, ...]) -> HolderGroups:
        """Holders of parameters that differ along the axes ``split``."""
        return self.experts if "ep" in split else self.dense

    @property
    def vocabulary(self) -> MeshAxis:
        """The axis that splits tables and logits by words."""
        return self.grid.x if self.grid.size > 1 else self.tp

    def is_first_holder(self, split: tuple[str, ...]) -> bool:
        """Whether this rank is its replica's first with this part; parts differ along ``split``."""
        return all(axis.rank == 0 for axis in self.inside if axis.name not in split)

    def replicas(self, size: int, stride: int, stream: str) -> Group | None:
        """This rank's group of ``size`` ranks with the same weights, ``stride`` apart; None for 1.

        Every rank must ask for the same groups in the same order. On a CPU each stream has a group
        of its own: in a shared one, threads could pair different collectives. On an accelerator all
        streams share one: it keeps order, and concurrent communicators may block each other.
        """
        if size == 1:
            return None
        if self.device.type != "cpu":
            stream = "main"
        if size == self.states.size and stream == "main":
            return self.states.group
        key = (size, stride, stream)
        if key not in self._blocks:
            self._blocks[key] = self.subgroup(self.axes.of_states.groups("dp", size, stride))
        return self._blocks[key]


def build_mesh(
    config: TrainConfig, device: torch.device, local_world_size: int | None, traffic: Traffic
) -> Mesh:
    """Build the mesh; every rank must call it. Raises ConfigError if the degrees do not fit."""
    world_size = dist.get_world_size()
    config.check(world_size, local_world_size)
    topology = config.topology(world_size, local_world_size)
    axes = config.axes(world_size)
    timeout = timedelta(seconds=config.collective_timeout_s)
    subgroup = partial(_subgroup, topology, traffic, timeout)
    found = {}
    for name, size in axes.of_states.sizes.items():
        group = subgroup(axes.of_states.groups(name), own=False) if size > 1 else None
        place = axes.of_states.place(dist.get_rank(), name)
        found[name] = MeshAxis(name, size, place, group)
    embedding = context = experts = None
    if config.model.tied_embeddings and config.pp > 1 and not config.stages.folded:
        ends = [[stages[0], stages[-1]] for stages in axes.groups("pp")]
        embedding = subgroup(ends)
    if config.cp > 1:
        context = subgroup(axes.groups("cp"))
    if config.ep > 1:
        near = axes.of_states.groups("dp", config.ep // config.tp)
        whole = [[rank + i for rank in one for i in range(config.tp)] for one in near]
        experts = subgroup([ranks for ranks in whole if axes.place(ranks[0], "tp") == 0])
    return Mesh(
        device=device,
        axes=axes,
        topology=topology,
        placement=config.place(world_size, local_world_size),
        pp=found["pp"],
        states=found["dp"],
        cp=MeshAxis("cp", config.cp, axes.place(dist.get_rank(), "cp"), context),
        tp=found["tp"],
        ep=MeshAxis("ep", config.ep, 0 if experts is None else experts.rank, experts),
        grid=Grid(*(found.get(name, MeshAxis(name, 1, 0, None)) for name in GRID)),
        world=_group(dist.group.WORLD, topology, traffic),
        traffic=traffic,
        subgroup=subgroup,
        folded=config.stages.folded,
        embedding=embedding,
    )


def _subgroup(
    topology: Topology, traffic: Traffic, timeout: timedelta, every: Ranks, own: bool = True
) -> Group | None:
    """This rank's group among ``every``, which are disjoint; None if it is in none.

    One call makes all of them: NCCL and RCCL split them off the world, elsewhere only a group's
    members make it. A group of all ranks is the world, unless it must be its ``own``.
    """
    mine = next((ranks for ranks in every if dist.get_rank() in ranks), None)
    world = dist.distributed_c10d._get_default_group()
    handle: dist.ProcessGroup | None = None
    if not own and len(every[0]) == world.size():
        handle = world
        _set_pg_timeout(timeout, handle)  # it may have torch's default
    elif world.bound_device_id is not None and torch.accelerator.is_available():
        handle = dist.split_group(split_ranks=every, timeout=timeout)
    elif mine is not None:
        handle = dist.new_group(mine, timeout=timeout, use_local_synchronization=True)
    return None if handle is None else _group(handle, topology, traffic)


def _group(handle: dist.ProcessGroup, topology: Topology, traffic: Traffic) -> Group:
    ranks = dist.get_process_group_ranks(handle)
    return Group(handle, ranks, topology.level(ranks), traffic)
