"""Logs of jobs that failed: as Slurm 22.05 wrote them, as newer sources print, and trainers'."""

HOST_OOM_22_05 = """\
slurmstepd-n3: error: Detected 1 oom-kill event(s) in StepId=1.5. Some of your processes may have \
been killed by the cgroup out-of-memory handler.
srun: error: n3: task 1: Out Of Memory
srun: launch/slurm: _step_signal: Terminating StepId=1.5
slurmstepd-n3: error: *** STEP 1.5 ON n3 CANCELLED AT 2026-11-21T02:51:46 ***
"""
HOST_OOM_24_05 = """\
slurmstepd: error: Detected 1 oom_kill event in StepId=812.0. Some of the step tasks have been OOM \
Killed.
srun: error: frontier00012: task 3: Out Of Memory
"""
HOST_OOM_TASK_ONLY = "srun: error: n1: tasks 4,6: Out Of Memory\n"
STEP_TIME_LIMIT = """\
slurmstepd-n3: error: *** STEP 1.14 ON n3 CANCELLED AT 2026-11-21T02:55:23 DUE TO TIME LIMIT ***
srun: error: n3: task 0: Terminated
srun: Force Terminated StepId=1.14
"""
NODE_FAILURE = """\
srun: error: Node failure on n2
srun: Job step aborted: Waiting up to 2 seconds for job step to finish.
slurmstepd-n1: error: *** STEP 2.3 ON n1 CANCELLED AT 2026-11-21T03:00:11 DUE TO NODE FAILURE, SEE \
SLURMCTLD LOG FOR DETAILS ***
srun: error: n1: tasks 0-1: Killed
"""
LOST_NODE = """\
srun: error: _server_read: fd 14 error reading header: Connection reset by peer
srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd on node 0
srun: Job step aborted: Waiting up to 2 seconds for job step to finish.
srun: error: n4: task 1: Killed
srun: error: Timed out waiting for job step to complete
"""
PREEMPTED = """\
slurmstepd-n1: error: *** STEP 2.3 ON n1 CANCELLED AT 2026-11-21T03:00:11 DUE TO PREEMPTION ***
"""
REQUEUED = PREEMPTED.replace("PREEMPTION", "JOB REQUEUE")
# After scancel of the job; as soon as Slurm has forgotten it; while its last steps are ended.
EXPIRED = """\
srun: error: Slurm job 2 has expired
srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 2
"""
FORGOTTEN = """\
srun: error: Unable to confirm allocation for job 2: Invalid job id specified
srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 2
"""
COMPLETING = (
    "srun: error: Unable to create step for job 2: Job/step already completing or completed\n"
)
# The same advice, of a job that still runs.
SILENT = """\
srun: error: Unable to confirm allocation for job 3: Unable to contact slurm controller (connect failure)
srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 3
"""  # noqa: E501
SCANCELLED = """\
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
slurmstepd-n4: error: *** STEP 1.1 ON n4 CANCELLED AT 2026-11-21T02:43:51 ***
srun: error: n4: tasks 0-1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=1.1
"""
SCANCELLED_AND_HANDLED = """\
slurmstepd-n3: error: *** STEP 1.7 ON n3 CANCELLED AT 2026-11-21T02:51:55 ***
srun: error: n3: tasks 0-1: Exited with exit code 5
"""
LAUNCH_FAILED_ON_A_NODE = """\
srun: error: Task launch for StepId=7.0 failed on node n2: Communication connection failure
srun: error: Application launch failed: Communication connection failure
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
srun: error: n1: tasks 0-1: Killed
"""
BAD_ALLOC = """\
terminate called after throwing an instance of 'std::bad_alloc'
  what():  std::bad_alloc
"""
OPENBLAS = "OpenBLAS error: Memory allocation still failed after 10 retries, giving up.\n"
NO_SHELL = """\
slurmstepd-n3: error: execve(): /bin/sh: No such file or directory
srun: error: n3: tasks 0-1: Exited with exit code 2
"""
CUDA_OOM = (
    "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
    "total capacity of 39.39 GiB\nsrun: error: n1: task 0: Exited with exit code 1\n"
)
HANDLED_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB; trying batches of 4\n"
)
TORCHRUN_KILLED = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-28_08:00:00
  host      : n1
  rank      : 0 (local_rank: 0)
  exitcode  : -9 (pid: 71)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 71
"""
