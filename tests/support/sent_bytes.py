"""Bytes that a rank sends in a step, by the trainer's purposes: the exchanges that ``step`` times.

Left out is what hardly counts: norms, biases and positions, the loss, the embedding's and the
output layer's own sums, a tied embedding's gradients between stages.
"""

from __future__ import annotations

import numpy as np

from analysis.cost.stages import stage_layers
from analysis.cost.state_exchanges import fullest_parameters
from search_spaces import Framework
from support.expected_traffic import once_bytes, repeatedly
from trainer.plan.axes import dp, grid, pp
from trainer.plan.axes.registry import AXES
from trainer.plan.jobs import Array, Jobs


def sent_bytes(jobs: Jobs, framework: Framework) -> dict[str, Array]:
    """Bytes that a rank of the fullest stage sends per step, by the trainer's purposes.

    ``gradients`` are all of their reductions, the trainer's ``gradient_sync`` included.
    """
    weights, gas = fullest_parameters(jobs, framework)[0], jobs.layout.gas
    layers = stage_layers(jobs, framework).most
    names = ("weights", "secondary", "gradients", "publish", "tensor", "context", "pipeline")
    found: dict[str, Array] = {name: np.zeros(len(jobs)) for name in names}
    sent = [
        *dp.job_exchanges(jobs, framework, dp.dense_holders(jobs), weights),
        *(repeatedly(one, gas) for one in grid.gz_exchanges(jobs, framework, weights)),
        pp.message(jobs, framework),
    ]
    for name, axis in AXES.items():
        if name != "gz":  # whose weights are those of the whole stage, tables included
            of_layer = axis.layer_exchanges(jobs, framework)
            sent += [repeatedly(one, gas * layers) for one in of_layer]
    for one in sent:
        purpose = "gradients" if one.purpose == "gradient_sync" else one.purpose
        found[purpose] = found[purpose] + once_bytes(one) * one.times
    return found
