"""How a pipeline's layers are dealt out to its stages, and which stage is the slowest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.cost.jobs import Array, Jobs
from analysis.cost.profiles import Profile


@dataclass(frozen=True)
class Stages:
    """Layers of a pipeline's stages; columns of shape (n,).

    Attributes:
        most: layers of the stage that has the most and not the output layer.
        last: layers of the stage that has the output layer as well.
    """

    most: Array
    last: Array


def stages(jobs: Jobs, profile: Profile) -> Stages:
    """Layers of the fullest stage and of the one with the output layer.

    Most frameworks give every stage equally many (where pp does not divide them, the first ones
    have one more). Some walk over the blocks and begin a new stage when the blocks so far hold
    more than its share of all weights; the output layer is such a block too, so that a large
    vocabulary leaves its stage few layers, or none.
    """
    layers, pp = jobs.num_layers, jobs.pp
    if not profile.stages_by_weight:
        return Stages(np.ceil(layers / pp), np.floor(layers / pp))
    head = jobs.embedding_parameters / jobs.layer_parameters  # in layers
    share = (layers + head) / pp
    first = np.minimum(np.floor(share) + 1, layers)
    # The output layer's stage: the first whose end lies behind all layers.
    index = np.minimum(np.floor(layers / share), pp - 1)
    before = np.where(index > 0, np.minimum(np.floor(index * share) + 1, layers), 0)
    return Stages(np.where(pp > 1, first, 0), layers - before)
