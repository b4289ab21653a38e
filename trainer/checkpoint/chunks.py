"""A rank's training state as chunks of whole parameters, for torch's DCP.

Distributed checkpoints (``torch.distributed.checkpoint``) keep slices of whole tensors, which any
layout can read; the planners here say which of them this rank has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner, metadata, planner
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from trainer.model.parameters import Piece
from trainer.model.slices import Slice, shard_of
from trainer.model.transformer import Stage
from trainer.optimizer import Optimizer
from trainer.parallel.mesh import Mesh
from trainer.plan.shards import Shape

CHUNK_ELEMENTS = 1 << 20
"""Largest chunk of several rows. Loading any part of a chunk reads all of it."""


class Chunk(NamedTuple):
    """A slice of one tensor of the checkpoint, and this rank's memory of it."""

    name: str
    whole: Shape
    slice: Slice
    data: Tensor
    writes: bool  # this rank saves the chunk, of all ranks that hold it

    @property
    def extent(self) -> metadata.ChunkStorageMetadata:
        _, offsets, sizes = self.slice
        return metadata.ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))


def chunks(stages: list[Stage], optimizer: Optimizer, mesh: Mesh) -> Iterator[Chunk]:
    """Master weights and moments of this rank; missing moments are made, as zeros.

    Names are ``model.``, ``exp_avg.`` or ``exp_avg_sq.``, and the parameter's in the whole model.
    """
    number = 0
    for piece in optimizer.weights.pieces():
        slot = piece.slot
        name = "embedding.weight" if slot.traits.copy else f"{slot.path}.{slot.name}"
        shard = shard_of(slot.module, slot.name)
        # Ranks with copies of a chunk are numbered, and take turns in saving.
        holders = mesh.holders(slot.traits.split)
        degree = holders.placement.optimizer_shard
        copies, copy = holders.size // degree, holders.rank // degree
        for axis in mesh.inside:
            if axis.name not in slot.traits.split:
                copies, copy = copies * axis.size, copy * axis.size + axis.rank
        for piece_slice in shard.slices(piece.start, piece.length, CHUNK_ELEMENTS):
            for state, tensor in _states(optimizer, piece).items():
                begin = piece.begin + piece_slice.begin - piece.start
                count = torch.Size(piece_slice.sizes).numel()
                data = tensor.detach().view(-1)[begin : begin + count].view(piece_slice.sizes)
                writes = number % copies == copy and not slot.traits.copy
                yield Chunk(f"{state}.{name}", shard.whole, piece_slice, data, writes)
                number += 1
    first = mesh.states.rank == 0 and mesh.is_first_holder(())
    for name, bias in ((n, b) for stage in stages for n, b in stage.named_buffers()):
        whole = tuple(bias.shape)  # of routers, on every rank
        yield Chunk(f"model.{name}", whole, Slice(0, (0,) * len(whole), whole), bias, first)


def _states(optimizer: Optimizer, piece: Piece) -> dict[str, Tensor]:
    """Master weight and both moments, as a checkpoint keeps them: flat like the master."""
    assert optimizer.adamw is not None
    state = optimizer.adamw.state[piece.master]
    if not state:  # as AdamW begins
        state["step"] = torch.zeros((), device=piece.master.device)
        for moment in ("exp_avg", "exp_avg_sq"):
            state[moment] = torch.zeros_like(piece.master)
    return {"model": piece.master, "exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]}


class SaveChunks(DefaultSavePlanner):
    """Saves the chunks that this rank writes; DCP checks that all ranks' make whole tensors."""

    def __init__(self, chunks: list[Chunk]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.chunks = {(c.name, torch.Size(c.slice.offsets)): c for c in chunks if c.writes}

    def create_local_plan(self) -> planner.SavePlan:
        items = []
        for chunk in self.chunks.values():
            properties = metadata.TensorProperties.create_from_tensor(chunk.data)
            data = planner.TensorWriteData(chunk.extent, properties, torch.Size(chunk.whole))
            index = metadata.MetadataIndex(chunk.name, chunk.extent.offsets)
            items.append(planner.WriteItem(index, planner.WriteItemType.SHARD, tensor_data=data))
        self.plan = planner.SavePlan(items)
        return self.plan

    def lookup_object(self, index: metadata.MetadataIndex) -> Tensor:
        return self.chunks[index.fqn, index.offset].data


class LoadChunks(DefaultLoadPlanner):
    """Loads all of this rank's chunks in place, from whatever chunks were saved."""

    def __init__(self, chunks: list[Chunk]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.chunks: dict[tuple[str, torch.Size], Chunk] = {}
        self.copies: list[tuple[Tensor, Tensor]] = []
        for chunk in chunks:
            first = self.chunks.setdefault((chunk.name, torch.Size(chunk.slice.offsets)), chunk)
            if first is not chunk:  # a tied embedding, where one rank has both ends of a pipeline
                self.copies.append((chunk.data, first.data))

    def fill_copies(self) -> None:
        """Copy loaded chunks to their second places on this rank."""
        for copy, loaded in self.copies:
            copy.copy_(loaded)

    def create_local_plan(self) -> planner.LoadPlan:
        assert self.metadata is not None
        wanted: dict[str, list[metadata.ChunkStorageMetadata]] = {}
        for chunk in self.chunks.values():
            wanted.setdefault(chunk.name, []).append(chunk.extent)
        items = []
        for name, extents in wanted.items():
            saved = self.metadata.state_dict_metadata[name]
            assert isinstance(saved, metadata.TensorStorageMetadata)
            items += create_read_items_for_chunk_list(name, saved, extents)
        return planner.LoadPlan(items)

    def lookup_tensor(self, index: metadata.MetadataIndex) -> Tensor:
        return self.chunks[index.fqn, index.offset].data
