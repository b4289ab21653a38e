"""Layers per pipeline stage, of one job or of columns of jobs. Torch-free.

``StageLayout`` numbers the built-in trainer's layers. ``StageLayers`` counts layers for any
framework; spaces check it, the cost model prices it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from trainer.plan.layouts import NO_LAYOUT, parsed_layout

Array = Any  # a number, or a numpy column


@dataclass(frozen=True)
class StageLayout:
    """Pipeline stages, ``vpp`` on each of ``pp`` ranks, numbered in model order."""

    pp: int
    vpp: int
    num_layers: int  # of the whole model
    # of the first and last pipeline rank; 0: an equal share
    first_layers: int = 0
    last_layers: int = 0
    # stages run over the ranks and back; the first rank also holds the last stage
    folded: bool = False

    def of_rank(self, pp_rank: int) -> tuple[int, ...]:
        if self.folded:
            return pp_rank, 2 * self.pp - 1 - pp_rank
        return tuple(range(pp_rank, self.pp * self.vpp, self.pp))

    def rank_of(self, stage: int) -> int:
        if self.folded:
            return min(stage, 2 * self.pp - 1 - stage)
        return stage % self.pp

    def layers(self, stage: int) -> range:
        held = self._layers_by_rank()
        before = sum(held[self.rank_of(one)] for one in range(stage)) // self.vpp
        return range(before, before + held[self.rank_of(stage)] // self.vpp)

    def _layers_by_rank(self) -> list[int]:
        """Layers of each rank, over all its stages."""
        first, last = self.first_layers, self.last_layers
        sharing = self.pp - (first > 0) - (last > 0)
        share = (self.num_layers - first - last) // max(sharing, 1)
        held = [share] * self.pp
        held[0], held[-1] = first or held[0], last or held[-1]
        return held


Split = Literal["even", "first_more", "last_fewer", "by_weight"]
"""How frameworks split layers over stages; see :class:`search_spaces.Framework`."""


GIVEN = ("first_stage_layers", "last_stage_layers")
COUNTED = ("account_for_embedding", "account_for_loss")
LAYOUT = "pipeline_layout"
STAGE_SETTINGS = (*GIVEN, *COUNTED, LAYOUT)
"""Parameters of a space for stages, short for Megatron-LM's arguments."""


class _Listed(NamedTuple):
    """Stage layers of jobs with a layout, by row; ``between`` as in ``StageLayers.between``."""

    rows: Array
    first: Array
    between: list[tuple[Array, Array]]
    last: Array
    fits: Array


class _Shares(NamedTuple):
    """How stages without given layers share the rest."""

    first_given: Array  # whether the first stage's layers are given
    last_given: Array
    embedding: Array  # layers that the embedding counts as
    loss: Array  # layers that the output layer with the loss counts as
    stages: Array  # number of stages that share
    units: Array  # layers that they share, with embedding and loss
    whole: Array  # units of each stage
    more: Array  # remaining units, one each for the first stages


@dataclass(frozen=True)
class StageLayers:
    """Layers per pipeline stage; columns of the broadcast shape of all fields.

    Stages without given layers share the rest, embedding and loss counted; the first ones take the
    remainder. With ``last_fewer`` each takes as many as the fullest stage until none are left
    (DeepSpeed's ``partition_balanced``).
    """

    num_layers: Array  # of the whole model
    pp: Array
    vpp: Array  # chunks do not change a stage's layers
    split: Split = "even"  # the framework's rule; ``by_weight`` is read as ``first_more``
    # layers of the first and of the last stage; 0: an equal share
    first_stage_layers: Array = 0.0
    last_stage_layers: Array = 0.0
    # layers that the embedding, and the output layer with the loss, count as when layers are shared
    # out; ignored on a stage with given layers
    account_for_embedding: Array = 0.0
    account_for_loss: Array = 0.0
    # text that assigns all layers (``trainer.plan.layouts``), in place of the rest
    pipeline_layout: Array = NO_LAYOUT

    @cached_property
    def first(self) -> Array:
        """Layers of the first stage; all layers without a pipeline."""
        shares = self._shares
        own = np.where(
            shares.first_given, self.first_stage_layers, self._share(0) - shares.embedding
        )
        own = np.where(self.pp == 1, self.num_layers, own)
        return np.where(self.listed, self._listed.first, own)

    @cached_property
    def second(self) -> Array:
        """Layers of the second stage; 0 if that is the last one, or there is none."""
        own = np.where(self.pp > 2, self._share(np.where(self._shares.first_given, 0, 1)), 0)
        return np.where(self.listed, self._listed.between[0][1], own)

    @cached_property
    def between(self) -> list[tuple[Array, Array]]:
        """Number and layers of candidates for the fullest inner stage: the second, and with a
        layout every later one with more layers or other chunks than all inner stages before it."""
        return [(np.ones(()), self.second), *self._listed.between[1:]]

    @cached_property
    def last(self) -> Array:
        """Layers of the stage with the output layer."""
        shares = self._shares
        own = self._share(shares.stages - 1) - shares.loss
        own = np.where(shares.last_given, self.last_stage_layers, own)
        own = np.where(self.pp == 1, self.num_layers, own)
        return np.where(self.listed, self._listed.last, own)

    @property
    def listed(self) -> Array:
        """Whether a layout assigns the layers."""
        return self._listed.rows

    @property
    def fit(self) -> Array:
        """Whether a layout, if any, matches layers, ranks and chunks."""
        return self._listed.fits

    @property
    def all_have_some(self) -> Array:
        """Whether every stage and chunk has a layer, and none is left over; layouts may leave
        stages empty."""
        stages, units = self._shares.stages, self._shares.units
        before_last = stages - np.where(self._shares.last_given, 1, 2)
        between = np.where(self.pp > 2, self._share(before_last), np.inf)
        smallest = np.minimum(np.minimum(self.first, self.last), between)
        enough = np.where(stages > 0, units >= stages * self.vpp, units == 0)
        return self.listed | ((smallest >= 1) & enough)

    @property
    def are_even(self) -> Array:
        """Whether shares are equal in whole layers, and so are the chunks of a stage."""
        given = np.mod(self.first_stage_layers, self.vpp) == 0
        given = given & (np.mod(self.last_stage_layers, self.vpp) == 0)
        # Without sharing stages no layer may be left.
        stages = self._shares.stages
        parts = np.where(stages > 0, stages * self.vpp, np.inf)
        return self.listed | ((np.mod(self._shares.units, parts) == 0) & (given | (self.pp == 1)))

    @cached_property
    def _listed(self) -> _Listed:
        if not np.any(np.not_equal(self.pipeline_layout, NO_LAYOUT)):
            return _Listed(np.False_, 0, [(1, 0)], 0, np.True_)
        columns = (self.pipeline_layout, self.num_layers, self.pp, self.vpp)
        text, num_layers, pp, vpp = np.broadcast_arrays(*columns)
        rows = text != NO_LAYOUT
        first, last, none = (np.zeros(text.shape) for _ in range(3))
        between, fits = [(np.ones(text.shape), none)], ~rows
        for each in np.unique(text[rows]):
            layout = parsed_layout(str(each))
            alike = text == each
            fits = fits | (alike & layout.fits(pp, vpp) & (num_layers == layout.num_layers))
            for ranks in np.unique(pp[alike & fits]):
                where, chunks = alike & (pp == ranks), layout.layers_of_chunks(int(ranks))
                layers = [sum(each) for each in chunks]
                first, last = np.where(where, layers[0], first), np.where(where, layers[-1], last)
                # Among equal stages the first has most micro-batches in flight.
                fuller = [
                    (stage, number)
                    for stage, number in enumerate(layers[1:-1], start=1)
                    if chunks[stage] not in chunks[1:stage]
                    if len(chunks[stage]) > 1 or number > max([-1, *layers[1:stage]])
                ]
                between += [(none, none)] * (len(fuller) - len(between))
                for place, (stage, number) in enumerate(fuller):
                    numbers, others = between[place]
                    between[place] = (
                        np.where(where, stage, numbers),
                        np.where(where, number, others),
                    )
        return _Listed(rows, first, between, last, fits)

    @cached_property
    def _shares(self) -> _Shares:
        first, last = self._given(self.first_stage_layers), self._given(self.last_stage_layers)
        embedding = np.where(first, 0, self.account_for_embedding)
        loss = np.where(last, 0, self.account_for_loss)
        stages = self.pp - np.where(first, 1, 0) - np.where(last, 1, 0)
        given = np.where(first, self.first_stage_layers, 0)
        given = given + np.where(last, self.last_stage_layers, 0)
        units = self.num_layers - given + embedding + loss
        whole = np.floor(units / np.maximum(stages, 1))
        more = units - whole * np.maximum(stages, 1)
        return _Shares(first, last, embedding, loss, stages, units, whole, more)

    def _given(self, layers: Array) -> Array:
        # Few jobs give layers; empty columns would cost time.
        return (layers > 0) & (self.pp > 1) if np.any(layers) else np.False_

    def _share(self, number: Array) -> Array:
        """Units of the ``number``-th sharing stage, from 0."""
        shares = self._shares
        if self.split != "last_fewer":
            return shares.whole + np.where(number < shares.more, 1, 0)
        most = shares.whole + np.where(shares.more > 0, 1, 0)
        return np.clip(shares.units - number * most, 0, most)
