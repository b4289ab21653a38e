"""How a pipeline's layers are split over its stages, and which stages decide time and memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.cost.jobs import Array, Jobs
from search_spaces import COUNTED, Framework, StageLayers, StageSettings
from trainer.plan.sizes import layer_weights, table_weights

_TINY = 1e-9  # shares are fractions: what is a whole number must not fall below it


@dataclass(frozen=True)
class BusyStages:
    """Layers of the stages of which one is the slowest; columns of shape (n,).

    Attributes:
        first: layers of the first stage, which has the embedding.
        inner: of the stage that has the most of those that have neither table; 0 where all have.
        last: layers of the stage that has the output layer as well.
    """

    first: Array
    inner: Array
    last: Array

    @property
    def most(self) -> Array:
        """Layers of the stage that has the most and not the output layer."""
        return np.maximum(self.first, self.inner)


def by_layers(jobs: Jobs, framework: Framework) -> StageLayers:
    """Stages of a framework that counts layers, as the jobs tell it to."""
    said = {name: getattr(jobs, name) for name in framework.stage_settings}
    for name in COUNTED:
        habit = float(framework.counts_ends)
        said[name] = np.where(said[name] < 0, habit, said[name]) if name in said else habit
    return StageLayers(jobs.num_layers, jobs.pp, jobs.vpp, StageSettings(**said), framework.split)


def stage_layers(jobs: Jobs, framework: Framework) -> BusyStages:
    """Layers of the fullest stages and of the one with the output layer.

    Most frameworks count layers. Some count in weights, output layer included, so that a large
    vocabulary leaves its stage few layers, or none. Shares are rounded down here, unlike in
    :func:`weighed`: with 16 and 32 stages the one with the output layer is measured to be faster
    than that says.
    """
    layers, pp = jobs.num_layers, jobs.pp
    if framework.split != "by_weight":
        split = by_layers(jobs, framework)
        # Where the first rank has the output layer, the last one is as those between.
        fullest = np.max(np.broadcast_arrays(*(number for _, number in split.between)), axis=0)
        between = np.maximum(fullest, np.where(jobs.folded, split.last, 0.0))
        last = np.where(jobs.folded, split.first, 1.0 * split.last)
        return BusyStages(split.first, between, last)
    head = table_weights(jobs) / layer_weights(jobs)  # in layers
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
    head = table_weights(jobs) / layer_weights(jobs)
    share = np.round((jobs.num_layers + head) / jobs.pp, 9)
    at = np.where(share >= 1, np.ceil(jobs.num_layers / share) - 1, jobs.num_layers)
    return np.maximum(share, 1.0), np.clip(at, 0, jobs.pp - 1)


def layers_before(jobs: Jobs, share: Array, stage: Array) -> Array:
    """Layers of a pipeline's stages before a given one, dealt out by weight."""
    return np.where(stage > 0, np.minimum(np.ceil(stage * share), jobs.num_layers), 0)
