"""Layers of the stages of a pipeline: of one trained job, or of columns of jobs. Torch-free.

``StageLayout`` is the built-in trainer's: every layer by its number. ``StageLayers`` counts layers
for any framework; spaces check it, the cost model prices it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from trainer.plan.layouts import NO_LAYOUT, parsed_layout

Array = Any  # a number, or a numpy column


@dataclass(frozen=True)
class StageLayout:
    """Stages of a pipeline, ``vpp`` on each of ``pp`` ranks, numbered in the order of the model.

    Attributes:
        pp: ranks of the pipeline.
        vpp: stages of each.
        num_layers: of the model.
        first_layers: of the first rank; 0: its share.
        last_layers: of the last one, likewise.
        folded: the last stage is on the first rank, as stages go there and back.
    """

    pp: int
    vpp: int
    num_layers: int
    first_layers: int = 0
    last_layers: int = 0
    folded: bool = False

    def of_rank(self, pp_rank: int) -> tuple[int, ...]:
        """The numbers of a rank's stages."""
        if self.folded:
            return pp_rank, 2 * self.pp - 1 - pp_rank
        return tuple(range(pp_rank, self.pp * self.vpp, self.pp))

    def rank_of(self, stage: int) -> int:
        """The rank that a stage is on."""
        if self.folded:
            return min(stage, 2 * self.pp - 1 - stage)
        return stage % self.pp

    def layers(self, stage: int) -> range:
        """The numbers of a stage's layers."""
        held = self._layers_by_rank()
        before = sum(held[self.rank_of(one)] for one in range(stage)) // self.vpp
        return range(before, before + held[self.rank_of(stage)] // self.vpp)

    def _layers_by_rank(self) -> list[int]:
        """Layers of each rank, in all of its stages."""
        first, last = self.first_layers, self.last_layers
        sharing = self.pp - (first > 0) - (last > 0)
        share = (self.num_layers - first - last) // max(sharing, 1)
        held = [share] * self.pp
        held[0], held[-1] = first or held[0], last or held[-1]
        return held


Split = Literal["even", "first_more", "last_fewer", "by_weight"]
"""Ways in which frameworks split layers over stages; see :class:`search_spaces.Framework`."""


@dataclass(frozen=True)
class StageSettings:
    """Settings of a pipeline's stages; numbers, or columns that broadcast.

    Attributes:
        first_stage_layers, last_stage_layers: layers of that stage; 0 is its share.
        account_for_embedding, account_for_loss: layers that the embedding, and the output layer
            with the loss, count as where layers are shared out; nothing on a stage whose layers
            are given.
        pipeline_layout: text that says all layers of all stages (``trainer.plan.layouts``), in
            place of the others.
    """

    first_stage_layers: Array = 0.0
    last_stage_layers: Array = 0.0
    account_for_embedding: Array = 0.0
    account_for_loss: Array = 0.0
    pipeline_layout: Array = NO_LAYOUT


STAGE_SETTINGS = tuple(f.name for f in fields(StageSettings))
"""Parameters by which a space says them, as Megatron-LM's arguments are called in short."""
GIVEN, COUNTED, LAYOUT = STAGE_SETTINGS[:2], STAGE_SETTINGS[2:4], STAGE_SETTINGS[4]


class _Listed(NamedTuple):
    """Layers of the stages of layouts, by row; what is between is as in ``StageLayers.between``."""

    rows: Array
    first: Array
    between: list[tuple[Array, Array]]
    last: Array
    fits: Array


@dataclass(frozen=True)
class StageLayers:
    """Layers of a pipeline's stages; columns of the shape that all of its fields broadcast to.

    Stages whose layers are not given share the rest, embedding and loss counted. What they cannot
    share equally gives the first of them one more. With ``last_fewer`` each has as many as the
    fullest one needs until none are left (DeepSpeed's ``partition_balanced``).

    Attributes:
        num_layers: of the whole model.
        pp, vpp: degrees; a stage has the same layers whatever number of chunks they are in.
        settings: of the configurations.
        split: of their framework; ``by_weight`` is read as ``first_more``.
    """

    num_layers: Array
    pp: Array
    vpp: Array
    settings: StageSettings
    split: Split = "even"

    @cached_property
    def first(self) -> Array:
        """Layers of the first stage; all where there is no other."""
        own = self._share(0) - self._embedding
        own = self._unless_given(self._first_given, self.settings.first_stage_layers, own)
        return own if self._listed is None else np.where(self.listed, self._listed.first, own)

    @cached_property
    def second(self) -> Array:
        """Layers of the second stage; 0 where that is the last one, or there is none."""
        own = np.where(self.pp > 2, self._share(np.where(self._first_given, 0, 1)), 0)
        if self._listed is None:
            return own
        return np.where(self.listed, self._listed.between[0][1], own)

    @cached_property
    def between(self) -> list[tuple[Array, Array]]:
        """Number and layers of the second stage, and of those before the last that may need more:
        with more layers, or other chunks, than all from the second to it. Only layouts have such
        a one."""
        further = [] if self._listed is None else self._listed.between[1:]
        return [(np.ones(()), self.second), *further]

    @cached_property
    def last(self) -> Array:
        """Layers of the stage with the output layer."""
        own = self._share(self._sharing - 1) - self._loss
        own = self._unless_given(self._last_given, self.settings.last_stage_layers, own)
        return own if self._listed is None else np.where(self.listed, self._listed.last, own)

    @property
    def listed(self) -> Array:
        """Whether a layout says the layers of all stages."""
        return np.False_ if self._listed is None else self._listed.rows

    @property
    def fit(self) -> Array:
        """Whether a layout, where there is one, is of as many layers, ranks and chunks."""
        return np.True_ if self._listed is None else self._listed.fits

    @property
    def all_have_some(self) -> Array:
        """Whether every stage has a layer, each of its chunks something, and none is left over.

        A layout may leave stages without."""
        before_last = self._sharing - np.where(self._last_given, 1, 2)
        between = np.where(self.pp > 2, self._share(before_last), np.inf)
        smallest = np.minimum(np.minimum(self.first, self.last), between)
        enough = np.where(
            self._sharing > 0, self._units >= self._sharing * self.vpp, self._units == 0
        )
        return self.listed | ((smallest >= 1) & enough)

    @property
    def are_even(self) -> Array:
        """Whether shares are equal in whole layers, and chunks of a stage likewise."""
        given = np.mod(self.settings.first_stage_layers, self.vpp) == 0
        given = given & (np.mod(self.settings.last_stage_layers, self.vpp) == 0)
        # With nothing to share it out to, nothing may be left.
        parts = np.where(self._sharing > 0, self._sharing * self.vpp, np.inf)
        return self.listed | ((np.mod(self._units, parts) == 0) & (given | (self.pp == 1)))

    @cached_property
    def _listed(self) -> _Listed | None:
        """None where no layout says anything."""
        if not np.any(np.not_equal(self.settings.pipeline_layout, NO_LAYOUT)):
            return None
        columns = (self.settings.pipeline_layout, self.num_layers, self.pp, self.vpp)
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
                # Of those with the same chunks the first keeps most.
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
    def _first_given(self) -> Array:
        return self._given(self.settings.first_stage_layers)

    @cached_property
    def _last_given(self) -> Array:
        return self._given(self.settings.last_stage_layers)

    @cached_property
    def _embedding(self) -> Array:
        return np.where(self._first_given, 0, self.settings.account_for_embedding)

    @cached_property
    def _loss(self) -> Array:
        return np.where(self._last_given, 0, self.settings.account_for_loss)

    @cached_property
    def _sharing(self) -> Array:
        """Stages whose layers are not given."""
        return self.pp - np.where(self._first_given, 1, 0) - np.where(self._last_given, 1, 0)

    @cached_property
    def _units(self) -> Array:
        """Layers that they share, and what counts as layers."""
        given = np.where(self._first_given, self.settings.first_stage_layers, 0)
        given = given + np.where(self._last_given, self.settings.last_stage_layers, 0)
        return self.num_layers - given + self._embedding + self._loss

    @cached_property
    def _whole(self) -> Array:
        return np.floor(self._units / np.maximum(self._sharing, 1))

    @cached_property
    def _more(self) -> Array:
        return self._units - self._whole * np.maximum(self._sharing, 1)

    def _given(self, layers: Array) -> Array:
        # Hardly any jobs say so, and columns of nothing take time.
        return (layers > 0) & (self.pp > 1) if np.any(layers) else np.False_

    def _unless_given(self, given: Array, layers: Array, own: Array) -> Array:
        if np.any(given):
            own = np.where(given, layers, own)
        return np.where(self.pp == 1, self.num_layers, own)

    def _share(self, number: Array) -> Array:
        """Units of one of the stages that share, counted from 0."""
        if self.split != "last_fewer":
            return self._whole + np.where(number < self._more, 1, 0)
        most = self._whole + np.where(self._more > 0, 1, 0)
        return np.clip(self._units - number * most, 0, most)
