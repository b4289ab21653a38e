"""Layers of a pipeline's stages, and the stages that decide time and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from analysis.cost.constants import names
from search_spaces import Framework
from trainer.plan.axes import ep
from trainer.plan.axes.dp import Holders
from trainer.plan.axes.pp import in_flight
from trainer.plan.jobs import Array, Jobs, Mask
from trainer.plan.sizes import layer_weights, table_weights
from trainer.plan.stages import COUNTED, StageLayers

T = TypeVar("T")

_TINY = 1e-9  # shares are fractions: rounding must not move a whole number below itself
FEW = 1000  # jobs at most for which derived columns are cached
SPLIT = ("split", "counts_ends", "stage_settings")  # habits that assign layers to stages


def kept_by(
    *habits: str,
) -> Callable[[Callable[[Jobs, Framework], T]], Callable[[Jobs, Framework], T]]:
    """Cache the results of a function that depends on jobs and these habits alone.

    Calibration needs them for the same few jobs under hundreds of constants and other habits. The
    cache is an attribute of the jobs and is freed with them.
    """

    def decorated(of: Callable[[Jobs, Framework], T]) -> Callable[[Jobs, Framework], T]:
        @wraps(of)
        def kept(jobs: Jobs, framework: Framework) -> T:
            if len(jobs) > FEW:
                return of(jobs, framework)
            known = vars(jobs).setdefault("_kept", {})
            key = of.__name__, *(getattr(framework, habit) for habit in habits)
            if key not in known:
                known[key] = of(jobs, framework)
            return known[key]  # type: ignore[no-any-return]

        return kept

    return decorated


@dataclass(frozen=True)
class BusyStages:
    """Layers of the stages that may be the slowest; columns of shape (n,)."""

    first: Array  # layers of the first stage, which has the embedding
    # most layers of a stage with neither embedding nor output layer; 0 without such stages
    inner: Array
    last: Array  # layers of the stage that also has the output layer

    @property
    def most(self) -> Array:
        """Most layers of a stage without the output layer."""
        return np.maximum(self.first, self.inner)


def by_layers(jobs: Jobs, framework: Framework) -> StageLayers:
    """Stages of a framework that balances numbers of layers, with the jobs' settings for it."""
    said = {name: getattr(jobs.stages, name) for name in framework.stage_settings}
    for name in COUNTED:
        habit = float(framework.counts_ends)
        said[name] = np.where(said[name] < 0, habit, said[name]) if name in said else habit
    layout = jobs.layout
    return StageLayers(jobs.model.num_layers, layout.pp, layout.vpp, framework.split, **said)


@kept_by(*SPLIT)
def stage_layers(jobs: Jobs, framework: Framework) -> BusyStages:
    """Layers of the fullest stages and of the one with the output layer.

    Most frameworks balance numbers of layers. Some balance weights, output layer included, so that
    a large vocabulary leaves its stage few layers, or none. Shares are rounded down here, unlike in
    :func:`weighed`, by which the output layer's stage would be slower than measured with 16 and 32
    stages.
    """
    layers, pp = jobs.model.num_layers, jobs.layout.pp
    if framework.split != "by_weight":
        split = by_layers(jobs, framework)
        # Where the first rank has the output layer, the last one is like those between.
        fullest = np.max(np.broadcast_arrays(*(number for _, number in split.between)), axis=0)
        between = np.maximum(fullest, np.where(jobs.folded, split.last, 0.0))
        last = np.where(jobs.folded, split.first, 1.0 * split.last)
        return BusyStages(split.first, between, last)
    head = table_weights(jobs.model) / layer_weights(jobs.model)  # in layers
    share = (layers + head) / pp
    whole = np.floor(share + _TINY)
    before = np.minimum(np.floor((pp - 1) * share + _TINY), layers)  # the last stage
    carried = np.floor((pp - 1) * (share - whole) + _TINY) >= 1
    most = np.minimum(np.where(carried, whole + 1, whole), before)
    return BusyStages(most, most, layers - before)


def weighed(jobs: Jobs) -> tuple[Array, Array]:
    """A stage's share of all weights, in layers, and the number of the output layer's stage.

    A walk over the blocks begins the next stage once the blocks so far hold a stage's share
    (nanotron, ``build_model``); a share below one layer still gives each stage a layer.
    """
    head = table_weights(jobs.model) / layer_weights(jobs.model)
    share = np.round((jobs.model.num_layers + head) / jobs.layout.pp, 9)
    at = np.where(share >= 1, np.ceil(jobs.model.num_layers / share) - 1, jobs.model.num_layers)
    return np.maximum(share, 1.0), np.clip(at, 0, jobs.layout.pp - 1)


def layers_before(jobs: Jobs, share: Array, stage: Array) -> Array:
    """Layers of a pipeline's stages before a given one, dealt out by weight."""
    return np.where(stage > 0, np.minimum(np.ceil(stage * share), jobs.model.num_layers), 0)


@dataclass(frozen=True)
class StageLoad:
    """One stage of each job's pipeline; columns of shape (n,)."""

    layers: Array  # transformer layers on it
    # micro-batches whose activations it keeps at once; a fraction where stages are interleaved, in
    # which a chunk counts as its share of the stage
    in_flight: Array
    embedding: Mask  # it looks tokens up
    head: Mask  # it computes logits and the loss


@kept_by(*SPLIT)
def fullest_stages(jobs: Jobs, framework: Framework) -> list[StageLoad]:
    """Candidates for the fullest stage: the first, the second, the one with the output layer; with
    a pipeline layout also every stage with more layers or another chunking than all before it.

    Micro-batches in flight fall from stage to stage, so no other stage needs more.
    """
    layers, pp = jobs.model.num_layers, jobs.layout.pp
    one = pp == 1
    if framework.split == "by_weight":
        share, head_at = weighed(jobs)
        one_stage = np.ones(len(jobs))
        first = layers_before(jobs, share, one_stage)
        second = layers_before(jobs, share, 2 * one_stage) - first
        last = layers - layers_before(jobs, share, head_at)
        between = [(one_stage, second)]
    else:
        head_at = pp - 1
        split = by_layers(jobs, framework)
        first, between, last = split.first, split.between, split.last
    embedding = np.ones(len(jobs), dtype=bool)
    inner = [
        StageLoad(np.where(one, 0, number), in_flight(jobs, at), ~embedding, ~embedding)
        for at, number in between
    ]
    return [
        StageLoad(np.where(one, layers, first), in_flight(jobs, 0), embedding, one | jobs.folded),
        inner[0],
        StageLoad(np.where(one, layers, last), in_flight(jobs, head_at), one, ~jobs.folded),
        *inner[1:],
    ]


@kept_by(*SPLIT)
def stacked_stages(jobs: Jobs, framework: Framework) -> list[Any]:
    """Columns of :class:`StageLoad` of the :func:`fullest_stages`; each of shape (stages, n)."""
    stages = fullest_stages(jobs, framework)
    return [np.stack([getattr(stage, name) for stage in stages]) for name in names(StageLoad)]


@kept_by()
def all_holders(jobs: Jobs, _: Framework) -> list[Holders]:
    """Holders of each class of parameters, kept with the jobs."""
    return ep.all_holders(jobs)


def refused(jobs: Jobs, framework: Framework) -> Mask:
    """Jobs that a framework rejects at start-up, regardless of memory.

    Some frameworks need pp - 1 micro-batches to fill a pipeline, and a block (embedding, layer,
    output layer, loss) on every stage; two more blocks follow the output layer.
    """
    if not framework.fills_pipeline:
        return np.zeros(len(jobs), dtype=bool)
    _, head_at = weighed(jobs)
    empty = (jobs.layout.pp > 1) & (head_at + 2 < jobs.layout.pp - 1)
    return np.asarray((jobs.layout.gas < jobs.layout.pp - 1) | empty)
