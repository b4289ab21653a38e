"""Messages of srun, slurmstepd (Slurm 22.05 to 25) and ``rank.sh`` that explain an end."""

from __future__ import annotations

import re

from slurm.outcome.texts import LauncherTexts

# Only srun and slurmstepd start a line so; a trainer's log cannot fake it.
_LINE = r"^(?:srun|slurmstepd\S*): (?:error: |fatal: )?"
_SLURM = f"(?m){_LINE}"
# An srun that waits for its step and is told to end by us says next that the job is over.
_UNASKED = rf"(?m)(?<!Cancelled pending job step with signal 15\n){_LINE}"

SRUN_TEXTS = LauncherTexts(
    preempted=re.compile(
        _UNASKED + r"(?:.*DUE TO (?:PREEMPTION|JOB REQUEUE)|Slurm job \d+ has expired"
        # The next line, "Expired or invalid job", is also written while the controller is silent.
        r"|Unable to (?:confirm allocation|create step) for job \d+: "
        r"(?:Invalid job id specified|Job/step already completing or completed))"
    ),
    time_limit=re.compile(_SLURM + r".*DUE TO TIME LIMIT"),
    node_failure=re.compile(
        # The step's healthy nodes, which are not to blame, report it in the second way.
        _SLURM + r"(?:Node failure on (?P<node>[\w.-]+)|.*DUE TO NODE FAILURE)"
    ),
    # A node dies faster than a busy controller notices: srun has lost it already.
    lost_node=re.compile(_SLURM + r"step_launch_notify_io_failure: .*"),
    host_oom=re.compile(_SLURM + r".*(?:oom[-_]kill event|: Out Of Memory)"),
    launch_failure=re.compile(
        _SLURM + r"(?:Unable to (?:create step|confirm allocation|contact slurm|resolve)"
        r"|Task launch for .* failed on node (?P<node>[\w.-]+)|Application launch failed"
        r"|.*(?:Requested node configuration is not available|More processors requested than"
        r"|Invalid generic resource|[Ii]nvalid option|unrecognized option))"
    ),
    no_answer=re.compile(_SLURM + r".*Socket timed out"),
    no_program=re.compile(  # as rank.sh says it, and slurmstepd where there is not even a shell
        r"(?m)^(?:meshtune: |slurmstepd-)(?P<node>[\w.-]+): (?:no program|error: execve\(\):) .*"
    ),
    task_end=re.compile(
        r"(?m)^srun: error: (?P<node>[\w.-]+): (?P<tasks>tasks? [\d,-]+): (?P<what>.+)$"
    ),
    # When a task ends first, -K1 is what cancels the step, and the task is to blame.
    cancelled=re.compile(_SLURM + r"(?:\*\*\* STEP .* CANCELLED AT|Job step aborted)"),
)

# srun has stopped waiting for its step, which may run on.
GAVE_UP = re.compile(_SLURM + r"Timed out waiting for job step to complete")
