"""From the evidence of a trial's end to its kind, by logs of real failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from slurm.outcome.classify import TAIL_LINES, classify
from slurm.outcome.evidence import Evidence
from slurm.outcome.kinds import Kind
from slurm.outcome.texts import NO_TEXTS
from slurm.outcome.watch import Termination
from slurm.srun.texts import SRUN_TEXTS
from support.job_logs import (
    BAD_ALLOC,
    COMPLETING,
    CUDA_OOM,
    EXPIRED,
    FORGOTTEN,
    HANDLED_OOM,
    HOST_OOM_22_05,
    HOST_OOM_24_05,
    HOST_OOM_TASK_ONLY,
    LAUNCH_FAILED_ON_A_NODE,
    LOST_NODE,
    NO_SHELL,
    NODE_FAILURE,
    OPENBLAS,
    PREEMPTED,
    REQUEUED,
    SCANCELLED,
    SCANCELLED_AND_HANDLED,
    SILENT,
    STEP_TIME_LIMIT,
    TORCHRUN_KILLED,
)

OK = {"status": "ok", "tflops_per_gpu": 60.0}


def evidence(
    stderr: str = "",
    *,
    exit_code: int | None = 1,
    termination: Termination = Termination.EXITED,
    result: Mapping[str, Any] | None = None,
    elapsed_s: float = 30.0,
    **more: Any,
) -> Evidence:
    fields: dict[str, Any] = {
        "nodes": ("n1", "n2", "n3", "n4"), "timeout_s": 600.0, "no_progress_timeout_s": 60.0,
        "texts": SRUN_TEXTS,
    }  # fmt: skip
    return Evidence(
        termination=termination, elapsed_s=elapsed_s, exit_code=exit_code, result=result,
        stderr=stderr, **{**fields, **more},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "kind", "words"),
    [
        (evidence(exit_code=0, result=OK), Kind.OK, ""),
        (evidence("INFO Error rate 0.1\nError: ignored", exit_code=0, result=OK), Kind.OK, ""),
        # Finished while it was being stopped, or as the timeout passed.
        (evidence(exit_code=0, result=OK, termination=Termination.STOPPED), Kind.OK, ""),
        (evidence(exit_code=0, result=OK, termination=Termination.TIMEOUT), Kind.OK, ""),
        # The trainer's own words.
        (
            evidence(result={"status": "oom", "where": "forward", "message": "m"}),
            Kind.OOM,
            "forward: m",
        ),
        (evidence(exit_code=0, result={"status": "diverged"}), Kind.DIVERGED, "diverged"),
        (evidence(exit_code=2, result={"status": "invalid"}), Kind.INVALID, "invalid"),
        (evidence(result={"status": "error", "message": "boom"}), Kind.CRASH, "boom"),
        (evidence(result={"status": "oom"}, termination=Termination.NO_PROGRESS), Kind.OOM, ""),
        # Memory of the device.
        (evidence(CUDA_OOM), Kind.OOM, "CUDA out of memory"),
        (
            evidence("torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 1"),
            Kind.OOM,
            "",
        ),
        (evidence("RuntimeError: HIP error: out of memory"), Kind.OOM, ""),
        (evidence("hipErrorOutOfMemory"), Kind.OOM, ""),
        (evidence("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), Kind.OOM, ""),
        (evidence("RuntimeError: CUDA driver error: out of memory"), Kind.OOM, ""),
        (evidence("Triton Error [HIP]:  Code: 2, Messsage: out of memory"), Kind.OOM, ""),
        (evidence("Failed to bind NVLS memory: CUDA error 2 'out of memory'"), Kind.OOM, ""),
        (evidence("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), Kind.OOM, ""),
        (evidence("NCCL WARN Cuda failure 'out of memory'"), Kind.OOM, ""),
        (evidence(result={"status": "error", "message": "hipErrorOutOfMemory"}), Kind.OOM, ""),
        # One rank is out of memory, the others hang.
        (evidence(CUDA_OOM, termination=Termination.NO_PROGRESS, exit_code=143), Kind.OOM, ""),
        # Memory of the host.
        (evidence(HOST_OOM_22_05), Kind.HOST_OOM, "oom-kill event"),
        (evidence(HOST_OOM_24_05), Kind.HOST_OOM, "oom_kill event"),
        (evidence(HOST_OOM_TASK_ONLY), Kind.HOST_OOM, "Out Of Memory"),
        (evidence(HOST_OOM_22_05, result=OK), Kind.HOST_OOM, ""),
        (evidence("RuntimeError: DefaultCPUAllocator: can't allocate memory"), Kind.HOST_OOM, ""),
        (evidence("[rank1]: MemoryError"), Kind.HOST_OOM, "MemoryError"),
        # As programs under a tiny limit said before they died, without a result.
        (evidence(BAD_ALLOC, exit_code=-6), Kind.HOST_OOM, "std::bad_alloc"),
        (evidence("cannot allocate memory for thread-local data: ABORT"), Kind.HOST_OOM, ""),
        (evidence("ImportError: libtorch_cpu.so: cannot map zero-fill pages"), Kind.HOST_OOM, ""),
        (evidence(OPENBLAS), Kind.HOST_OOM, "Memory allocation"),
        (evidence("OSError: [Errno 12] Cannot allocate memory"), Kind.HOST_OOM, ""),
        (evidence("numpy._core._exceptions._ArrayMemoryError: Unable"), Kind.HOST_OOM, ""),
        # The disk.
        (evidence("OSError: [Errno 28] No space left on device"), Kind.DISK_FULL, "No space"),
        (evidence("OSError: [Errno 122] Disk quota exceeded: 'x'"), Kind.DISK_FULL, "quota"),
        (
            evidence(
                "OSError: [Errno 28] No space left on device",
                result={"status": "error", "message": "cannot save /a: No space left on device"},
            ),
            Kind.DISK_FULL,
            "cannot save /a",
        ),
        (evidence("unable to write to file </torch_1_2>: No space left on device"), Kind.CRASH, ""),
        (evidence("x", unwritten="stdout.log: No space"), Kind.DISK_FULL, "stdout.log: No space"),
        (evidence(unwritten="x", termination=Termination.NO_PROGRESS), Kind.DISK_FULL, ""),
        (evidence(unwritten="x", exit_code=0, result=OK), Kind.OK, ""),
        (evidence(CUDA_OOM, unwritten="x"), Kind.OOM, ""),
        # Time.
        (
            evidence(termination=Termination.TIMEOUT, exit_code=143),
            Kind.TIMEOUT,
            "not done after 600 s",
        ),
        (
            evidence(termination=Termination.NO_PROGRESS, exit_code=137),
            Kind.TIMEOUT,
            "for 60 s: a hang",
        ),
        (evidence(termination=Termination.TIMEOUT, exit_code=1, result=OK), Kind.TIMEOUT, ""),
        (evidence(STEP_TIME_LIMIT, exit_code=143, elapsed_s=620), Kind.TIMEOUT, "TIME LIMIT"),
        (
            evidence(STEP_TIME_LIMIT, exit_code=143, elapsed_s=300),
            Kind.PREEMPTED,
            "allocation ended",
        ),
        # The machine.
        (evidence(NODE_FAILURE, exit_code=137), Kind.NODE_FAILURE, "Node failure on n2"),
        (evidence(NODE_FAILURE, result={"status": "error"}), Kind.NODE_FAILURE, ""),
        (evidence(NODE_FAILURE, termination=Termination.NO_PROGRESS), Kind.NODE_FAILURE, ""),
        (evidence(LOST_NODE, exit_code=137), Kind.NODE_FAILURE, "step_launch_notify_io_failure"),
        (evidence(down_nodes=frozenset({"n2"})), Kind.NODE_FAILURE, "down: n2"),
        (evidence("CUDA error: uncorrectable ECC error encountered"), Kind.NODE_FAILURE, "ECC"),
        (evidence(PREEMPTED, exit_code=143), Kind.PREEMPTED, "PREEMPTION"),
        (evidence(REQUEUED, exit_code=143), Kind.PREEMPTED, "REQUEUE"),
        (evidence(EXPIRED), Kind.PREEMPTED, "has expired"),
        (evidence(FORGOTTEN), Kind.PREEMPTED, "Invalid job id"),
        (evidence(COMPLETING), Kind.PREEMPTED, "already completing"),
        (evidence(SILENT), Kind.LAUNCH_FAILURE, "Unable to contact"),
        (evidence(SCANCELLED, exit_code=137), Kind.PREEMPTED, "cancelled from outside"),
        (evidence(SCANCELLED_AND_HANDLED, exit_code=5), Kind.PREEMPTED, "cancelled from outside"),
        # Ended from outside: a statement of the trainer's stands, figures in its log do not.
        (evidence(SCANCELLED, exit_code=137, result=OK, complete=True), Kind.OK, ""),
        (evidence(SCANCELLED, exit_code=137, result=OK), Kind.PREEMPTED, "cancelled from outside"),
        (evidence(exit_code=-9, severed="srun was killed"), Kind.PREEMPTED, "srun was killed"),
        (evidence(exit_code=-9, severed="s", result=OK, complete=True), Kind.OK, ""),
        (evidence(CUDA_OOM, exit_code=-9, severed="s"), Kind.OOM, ""),
        (evidence(HANDLED_OOM, exit_code=-9, severed="s"), Kind.PREEMPTED, "s"),
        (evidence(HANDLED_OOM), Kind.OOM, ""),
        # A process of the trainer's own launcher.
        (evidence(TORCHRUN_KILLED), Kind.PREEMPTED, "Signal 9 (SIGKILL) received"),
        (evidence(TORCHRUN_KILLED, oom_kills=1), Kind.HOST_OOM, ""),
        (evidence("[1]: Signal 15 (SIGTERM) received by PID 7: another's end"), Kind.CRASH, ""),
        (evidence(TORCHRUN_KILLED, result=OK, complete=True), Kind.OK, ""),
        (evidence(TORCHRUN_KILLED, exit_code=0), Kind.CRASH, "no result"),
        # A loader's worker dies with its rank; a handled end of another process is none.
        (
            evidence("RuntimeError: DataLoader worker (pid 71) is killed by signal: Terminated. "),
            Kind.CRASH,
            "",
        ),
        # Of the memory of a shell's program that was killed, its own words are better evidence.
        (evidence(HANDLED_OOM, exit_code=137, severed="s"), Kind.OOM, ""),
        (
            evidence(
                exit_code=-9,
                severed="s",
                result={"status": "error", "message": "torch.OutOfMemoryError: CUDA out of memory"},
            ),
            Kind.OOM,
            "",
        ),
        (evidence("MemoryError: Out of memory while decompressing"), Kind.HOST_OOM, ""),
        (evidence("sqlite3.OperationalError: out of memory"), Kind.CRASH, ""),
        (evidence("OSError: [Errno 28] No space left: '/early_warning/a'"), Kind.DISK_FULL, ""),
        (evidence("[Worker 0] [Errno 98] Address already in use"), Kind.LAUNCH_FAILURE, ""),
        # A warning is no cause.
        (evidence("[W socket.cpp:464] (errno: 98 - Address already in use)."), Kind.CRASH, ""),
        (evidence("wandb: WARNING No space left on device"), Kind.CRASH, ""),
        (evidence("OSError: [Errno 98] Adresse wird bereits verwendet"), Kind.LAUNCH_FAILURE, ""),
        (evidence("OSError: [Errno 28] Auf dem Gerät ist kein Platz"), Kind.DISK_FULL, ""),
        (evidence(termination=Termination.NO_PROGRESS, severed="s"), Kind.PREEMPTED, "s"),
        (evidence(exit_code=-9, severed="s", termination=Termination.STOPPED), Kind.CANCELLED, ""),
        # The launch.
        (
            evidence(
                "srun: error: Unable to create step for job 1: More processors requested than "
                "permitted"
            ),
            Kind.LAUNCH_FAILURE,
            "More processors",
        ),
        (
            evidence("srun: error: Unable to create step for job 1: Requested nodes are busy"),
            Kind.LAUNCH_FAILURE,
            "busy",
        ),
        (
            evidence("srun: error: Invalid generic resource (gres) specification"),
            Kind.LAUNCH_FAILURE,
            "gres",
        ),
        (
            evidence("srun: unrecognized option '--nosuch=1'", exit_code=255),
            Kind.LAUNCH_FAILURE,
            "nosuch",
        ),
        (
            evidence("srun: error: Unable to confirm allocation for job 777"),
            Kind.LAUNCH_FAILURE,
            "777",
        ),
        (
            evidence("srun: error: slurm_receive_msgs: Socket timed out", exit_code=None),
            Kind.LAUNCH_FAILURE,
            "timed out",
        ),
        (evidence("srun: error: Socket timed out", exit_code=3), Kind.CRASH, "exit code 3"),
        (evidence(LAUNCH_FAILED_ON_A_NODE), Kind.LAUNCH_FAILURE, "failed on node n2"),
        (evidence(exit_code=None, not_started="no program x"), Kind.LAUNCH_FAILURE, "program x"),
        (evidence(NO_SHELL, exit_code=2), Kind.LAUNCH_FAILURE, "/bin/sh"),
        (
            evidence(
                "DistNetworkError: The server socket has failed to bind "
                "(errno: 98 - Address already in use)"
            ),
            Kind.LAUNCH_FAILURE,
            "in use",
        ),
        (evidence(result={"status": "error", "message": "EADDRINUSE"}), Kind.LAUNCH_FAILURE, ""),
        # Stopped by us.
        (
            evidence(SCANCELLED, termination=Termination.STOPPED, exit_code=137),
            Kind.CANCELLED,
            "stopped",
        ),
        (evidence(termination=Termination.STOPPED, exit_code=0), Kind.CANCELLED, "stopped"),
        (
            evidence(termination=Termination.STOPPED, result={"status": "error"}),
            Kind.CANCELLED,
            "stopped",
        ),
        # Everything else.
        (
            # We have cancelled what was left.
            evidence(SCANCELLED, exit_code=3, failed_on="n3"),
            Kind.CRASH,
            "exit code 3",
        ),
        (evidence(exit_code=-11, failed_on="n3"), Kind.CRASH, "ended by signal 11"),
        # A kernel that kills a rank's helper, and Slurm that tells of an earlier trial's.
        (evidence(exit_code=7, failed_on="n1", oom_kills=1), Kind.HOST_OOM, "1 processes killed"),
        (evidence(HOST_OOM_22_05, exit_code=-11, failed_on="n1"), Kind.CRASH, "signal 11"),
        (evidence(HOST_OOM_22_05, exit_code=None), Kind.HOST_OOM, "oom-kill event"),
        (
            evidence("Traceback\nValueError: nix", exit_code=1),
            Kind.CRASH,
            "exit code 1; ValueError: nix",
        ),
        (evidence(exit_code=-9), Kind.CRASH, "ended by signal 9"),
        (evidence(exit_code=3, result=OK), Kind.CRASH, "exit code 3; after an ok result"),
        (evidence(exit_code=-6, result=OK), Kind.CRASH, "signal 6; after an ok result"),
        # torn down after the last step: an exit code of its own is a failure all the same
        (evidence(exit_code=3, result=OK, reached_end=True), Kind.CRASH, "exit code 3"),
        (evidence(exit_code=-6, result=OK, reached_end=True), Kind.OK, "exit code -6 after its"),
        (evidence(exit_code=139, result=OK, reached_end=True), Kind.OK, "exit code 139 after its"),
        (evidence(CUDA_OOM, exit_code=-6, result=OK, reached_end=True), Kind.OOM, ""),
        (
            evidence(termination=Termination.NO_PROGRESS, result=OK, reached_end=True),
            Kind.TIMEOUT,
            "",
        ),
        (
            evidence(exit_code=0, no_result="there is none"),
            Kind.CRASH,
            "exit code 0, but there is none",
        ),
        (evidence(exit_code=None), Kind.CRASH, "unknown"),
        (
            evidence("AssertionError: world size (12) is not divisible by total_model_size (8)"),
            Kind.INVALID,
            "world size (12)",
        ),
    ],
)
def test_a_trials_end_is_told_from_its_evidence(seen: Evidence, kind: Kind, words: str) -> None:
    outcome = classify(seen)
    assert (outcome.kind, words in outcome.message) == (kind, True), outcome.message
    assert "\n" not in outcome.message


@pytest.mark.parametrize(
    "line",
    [
        "rank 0: srun: error: Node failure on n2",
        "my log: slurmstepd: error: Detected 1 oom_kill event in StepId=1.0",
        "loss is DUE TO TIME LIMIT",
        "warning: step CANCELLED AT noon DUE TO PREEMPTION",
    ],
)
def test_only_slurms_own_lines_speak_for_slurm(line: str) -> None:
    assert classify(evidence(line)).kind is Kind.CRASH


@pytest.mark.parametrize(
    "words",
    [
        NODE_FAILURE,
        LOST_NODE,
        PREEMPTED,
        EXPIRED,
        STEP_TIME_LIMIT,
        SCANCELLED,
        LAUNCH_FAILED_ON_A_NODE,
    ],
)
def test_what_a_trainer_prints_is_no_word_of_slurms(words: str) -> None:
    outcome = classify(evidence(words, launcher_said=""))
    assert (outcome.kind, outcome.lost_nodes, outcome.suspect_nodes) == (Kind.CRASH, (), ())


def test_slurms_lines_mean_nothing_where_slurm_did_not_launch() -> None:
    outcome = classify(evidence(NODE_FAILURE, texts=NO_TEXTS))
    assert outcome.kind is Kind.CRASH
    assert outcome.lost_nodes == ()


def test_a_failed_node_leaves_the_pool_once_slurms_state_confirms_it() -> None:
    outcome = classify(evidence(NODE_FAILURE, down_nodes=frozenset({"n2"})))
    assert (outcome.lost_nodes, outcome.suspect_nodes) == (("n2",), ())
    outcome = classify(evidence(NODE_FAILURE))
    assert (outcome.lost_nodes, outcome.suspect_nodes) == ((), ("n2",))


def test_sruns_lost_connection_makes_no_node_suspect() -> None:
    """It numbers the step's nodes, and which one that is it does not say."""
    outcome = classify(evidence(LOST_NODE, exit_code=137))
    assert outcome.suspect_nodes == outcome.lost_nodes == ()


def test_a_node_that_a_launch_failed_on_is_suspect() -> None:
    outcome = classify(evidence(LAUNCH_FAILED_ON_A_NODE))
    assert outcome.suspect_nodes == ("n2",)
    assert outcome.lost_nodes == ()


def test_words_of_a_trainer_cost_no_node() -> None:
    outcome = classify(evidence("CUDA error: uncorrectable ECC error\n", failed_on="n4"))
    assert outcome.kind is Kind.NODE_FAILURE
    assert outcome.suspect_nodes == outcome.lost_nodes == ()


def test_nodes_whose_processes_would_not_die_are_lost_whatever_the_kind() -> None:
    outcome = classify(evidence(termination=Termination.TIMEOUT, stuck_nodes=("n1", "n2")))
    assert outcome.kind is Kind.TIMEOUT
    assert outcome.lost_nodes == ("n1", "n2")


def test_the_last_lines_of_stderr_are_kept() -> None:
    lines = [f"line {i}" for i in range(100)]
    assert classify(evidence("\n".join(lines))).stderr_tail.splitlines() == lines[-TAIL_LINES:]
