"""Messages of srun and slurmstepd (Slurm 22.05 to 25) that explain an end.

Agents keep the output of ranks apart, so that srun's standard error has nothing else.
"""

from __future__ import annotations

import re

from slurm.outcome.texts import LauncherTexts

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
    no_program=re.compile(  # an agent's own: the interpreter is not on that node
        r"(?m)^slurmstepd-(?P<node>[\w.-]+): error: execve\(\): .*"
    ),
    # When a rank has failed first, the driver is what cancels the step, and the rank is to blame.
    cancelled=re.compile(_SLURM + r"(?:\*\*\* STEP .* CANCELLED AT|Job step aborted)"),
)

# srun has stopped waiting for its step, which may run on.
REFUSED = re.compile(_SLURM + r"Unable to create step for job")
GAVE_UP = re.compile(_SLURM + r"Timed out waiting for job step to complete")
