"""The constants of time, in one record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.cost.compute import ComputeConstants
from analysis.cost.constants import Constants, constant, names
from analysis.cost.groups import LinkConstants
from trainer.plan.jobs import Jobs, Mask


@dataclass(frozen=True)
class OverlapConstants(Constants):
    """Overlap of communication, and overheads of the program itself."""

    overlap: float = constant(0.6, 0.3)  # share of concurrent computation that hides communication
    # exposed share of exchanges that are fused with a matrix product (async_tp)
    exposed_fused: float = constant(0.55, 0.4)
    host_call_s: float = constant(5e-5, 0.7)  # of the host, to start one collective of a layer
    # in addition for each member of the group, where a pipeline's sends cross nodes as well
    contended_call_s: float = constant(1e-5, 1.5)
    exposed_sends: float = constant(0.3, 0.7)  # exposed share of a send's transfer
    send_s: float = constant(1e-4, 2.0)  # of the host, to hand a micro-batch to another stage
    # in addition for each send, in runs on a congested network (see network.py)
    crowded_send_s: float = constant(0.5, 0.3)
    # exposed share of the time to send tokens to experts and back
    exposed_dispatch: float = constant(0.8, 0.4)
    # for each rank that alone updates its part of whole weights, and sends it to all
    owner_s: float = constant(2e-3, 1.0)
    update: float = constant(1.5, 0.5)  # memory traffic over that of a fused optimizer
    # time of the update on the host over that of DeepSpeed's CPU-Adam (see state_exchanges.py)
    host_update: float = constant(1.0, 0.7)
    step_s: float = constant(0.02, 1.0)  # of the host, once a step


@dataclass(frozen=True)
class TimeConstants(ComputeConstants, LinkConstants, OverlapConstants):
    """All constants of time, in one record."""


_OF_EXPERTS = ("expert_share", "permuted_copies", "expert_launch_s", "exposed_dispatch")


def without_effect(jobs: Jobs) -> Mask:
    """Mask of the time constants, in field order, that have no effect on these jobs."""
    options = jobs.options
    unused = [
        *(_OF_EXPERTS if jobs.model.mixture is None else ()),
        *(() if options.fp8.any() else ("fp8_share",)),
        *(() if options.async_tp.any() else ("exposed_fused",)),
        *(
            ()
            if (options.offload_optimizer + options.offload_parameters).any()
            else ("host_update",)
        ),
    ]
    return np.array([name in unused for name in names(TimeConstants)])
