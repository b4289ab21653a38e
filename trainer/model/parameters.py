"""The parameters of a stage, by how their gradients are summed, counted and decayed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from trainer.model.slices import shard_of
from trainer.model.transformer import Stage
from trainer.plan.shards import Traits


class Slot(NamedTuple):
    """The module and the name under which a parameter is found."""

    module: nn.Module
    path: str  # of the module in the whole model
    name: str
    traits: Traits

    @property
    def parameter(self) -> nn.Parameter:
        return getattr(self.module, self.name)

    @property
    def numel(self) -> int:
        return self.parameter.numel()


class Piece(NamedTuple):
    """Master weights of consecutive elements of one parameter, which this rank updates."""

    slot: Slot
    master: nn.Parameter
    begin: int  # first element in the flattened master
    length: int
    start: int  # first element in this rank's flattened parameter


def slots(stage: Stage) -> Iterator[Slot]:
    """Every parameter of a stage, in forward order, with the split that its module notes."""
    pipelined = not (stage.is_first and stage.is_last)
    tied = stage.model.tied_embeddings and pipelined
    for path, module in stage.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            shared = tied and (module is stage.embedding or module is stage.head)
            split, copy = shard_of(module, name).split.axes, shared and module is stage.head
            traits = Traits(split, decays=parameter.dim() > 1, shared=shared, copy=copy)
            yield Slot(module, path, name, traits)
