"""How a pipeline's layers are dealt out to its stages, and which stage is the slowest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.cost.jobs import Array, Jobs
from analysis.cost.profiles import Profile

_TINY = 1e-9  # shares are fractions: what is a whole number must not fall below it


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
    have one more). Some count in weights: a stage ends before the block with which all blocks so
    far would exceed its and the earlier stages' equal share. The output layer is such a block too,
    so that a large vocabulary leaves its stage few layers, or none.
    """
    layers, pp = jobs.num_layers, jobs.pp
    if not profile.stages_by_weight:
        return Stages(np.ceil(layers / pp), np.floor(layers / pp))
    head = jobs.embedding_parameters / jobs.layer_parameters  # in layers
    share = (layers + head) / pp
    whole = np.floor(share + _TINY)
    before = np.minimum(np.floor((pp - 1) * share + _TINY), layers)  # the last stage
    carried = np.floor((pp - 1) * (share - whole) + _TINY) >= 1
    most = np.minimum(np.where(carried, whole + 1, whole), before)
    return Stages(most, layers - before)
