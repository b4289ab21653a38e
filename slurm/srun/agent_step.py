"""A step with an agent in each of its tasks, which starts trials there, one at a time.

It may be kept from trial to trial: its ranks are then forked from processes that have the trainer's
imports done. So only the first trial waits for a step, and for Python and torch on all its nodes;
yet each has processes of its own, which no other can disturb.

The agents' connection is srun's standard input and output. Its standard error is Slurm's alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm.agents import TaskAgents
from slurm.forked_rank import parsed_python, read_at_start
from slurm.outcome.rank_ends import FAILURE_GRACE_S
from slurm.srun.ending import Step
from slurm.trial import Lease, TrialSpec


def can_be_forked(spec: TrialSpec) -> bool:
    """Whether the trial's ranks can be forked in a step that is kept."""
    return spec.kept is not None and parsed_python(spec.argv) is not None


class AgentStep(TaskAgents):
    """An srun whose tasks are agents.

    ``step_spec`` is the step as a trial, which may never end; it can serve trials with the same
    :func:`requirements`, if it is kept at all.
    """

    def __init__(
        self,
        step_spec: TrialSpec,
        lease: Lease,
        argv: Sequence[str],
        environ: Mapping[str, str],
        requirements: object,
    ) -> None:
        self.requirements = requirements
        # Where ranks are forked from, those that find no memory still write the trial's result.
        grace_s = FAILURE_GRACE_S if requirements else 0.0
        folder = step_spec.directory  # its ranks' own folder may be in a container alone
        super().__init__("srun", argv, folder, environ, step_spec.world_size, grace_s)
        name = step_spec.name
        self.step = Step(name, lease, frozenset({name}), self.program)

    @property
    def usable(self) -> bool:
        """Whether it can be given a trial."""
        return self.alive and not self.channel.void

    def start(self, spec: TrialSpec, env: Mapping[str, str], **order: Any) -> None:
        modules = spec.kept.modules if spec.kept else ()
        super().start(spec, env, forked=self.requirements is not None, modules=modules, **order)

    def _take_output(self, data: bytes) -> None:
        self.channel.feed(data)

    def _send(self, data: bytes) -> None:
        assert self.program.stdin is not None
        self.program.stdin.write(data)
        self.program.stdin.flush()


def requirements(spec: TrialSpec, lease: Lease) -> object:
    """Properties that two trials must share for one step to serve both; None: it serves one."""
    if not can_be_forked(spec):
        return None
    return (
        lease.nodes,
        spec.ranks_per_node,
        spec.cpus_per_rank,
        spec.memory_bytes_per_rank,
        spec.argv[0],
        spec.kept,
        read_at_start(spec.env),
    )
