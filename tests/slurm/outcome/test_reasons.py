"""What the rank that failed first says itself: the reason of a crash, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from slurm.outcome.classify import classify
from slurm.outcome.evidence import Evidence
from slurm.outcome.kinds import Kind
from slurm.outcome.texts import NO_TEXTS
from slurm.outcome.watch import Termination


def evidence(stderr: str, *, result: Mapping[str, Any] | None = None, code: int = 1) -> Evidence:
    return Evidence(
        termination=Termination.EXITED, elapsed_s=30.0, exit_code=code, result=result,
        stderr=stderr, nodes=("n1",), timeout_s=600.0, no_progress_timeout_s=60.0, texts=NO_TEXTS,
    )  # fmt: skip


PEERS = """\
UserWarning: KeyError: 'unused' was handled
[rank1]: Traceback (most recent call last):
[rank1]: KeyError: 'lr'

[rank1]: The above exception was the direct cause of the following exception:

[rank1]: ValueError: learning rate is missing
[rank0]: Traceback (most recent call last):
[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:42398.
[rank2]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a \
network error
"""


@pytest.mark.parametrize("stated", [None, "RuntimeError: Connection closed by peer [127.0.0.1]:1"])
@pytest.mark.parametrize("log", [PEERS, PEERS.replace("[rank1]: ", "")])
def test_the_reason_of_a_crash_is_the_failed_ranks_own_exception(
    log: str, stated: str | None
) -> None:
    result = stated and {"status": "error", "message": stated}
    outcome = classify(evidence(log, result=result or None))
    assert outcome.message == "exit code 1; ValueError: learning rate is missing"


def test_a_crash_of_which_only_peers_speak_says_what_they_say() -> None:
    (peers,) = (line for line in PEERS.splitlines() if "closed by peer" in line)
    assert "Connection closed by peer" in classify(evidence(peers)).message


@pytest.mark.parametrize(
    "line",
    [
        "/opt/venv/bin/python3: No module named pretrain",
        "python: can't open file '/here/train.py': [Errno 2] No such file or directory",
    ],
)
def test_what_python_says_of_a_missing_script_is_the_reason(line: str) -> None:
    assert classify(evidence(f"{line}\nbye\n", code=2)).message == f"exit code 2; {line}"


LAUNCHER = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "


@pytest.mark.parametrize("after", ["bye", LAUNCHER])
@pytest.mark.parametrize(
    "line",
    [
        "bash: line 1: torchrun: command not found",
        "/bin/sh: 1: torchrun: not found",
        "train.sh: line 7: ./run.sh: Permission denied",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 262144",
        "Memory access fault by GPU node-4 (Agent handle: 0x5581) on address 0x7f. Reason: x.",
        "Fatal Python error: Segmentation fault",
        "python: error while loading shared libraries: libmpi.so.40: cannot open shared object",
        "pretrain_gpt.py: error: unrecognized arguments: --no-such",
    ],
)
def test_the_reason_of_an_end_without_an_exception_is_the_line_that_names_one(
    line: str, after: str
) -> None:
    log = f"a.sh: line 2: module: command not found\n{line}\nExtension modules: numpy\n{after}\n"
    assert classify(evidence(log, code=127)).message == f"exit code 127; {line}"


def test_a_rank_that_failed_itself_outweighs_what_a_shell_has_said_before() -> None:
    log = "train.sh: line 2: module: command not found\n" + PEERS
    assert classify(evidence(log)).message == "exit code 1; ValueError: learning rate is missing"


@pytest.mark.parametrize(
    "said",
    [
        "AssertionError: world size (12) is not divisible by total_model_size (8)",
        "ValueError: num_attention_heads (12) must be a multiple of tensor_model_parallel_size (8)",
        "AssertionError: num heads must be divisible by tensor parallel size",
        "AssertionError: 12 is not divisible by 8",
        "AssertionError: global batch size (9) is not divisible by micro batch size (2) times data",
        "AssertionError: number of layers should be divisible by the pipeline parallel size",
        "AssertionError: Invalid parallel dims: dp_replicate(1) * tp(16) != WORLD_SIZE(8)",
        "AssertionError: Check batch related parameters. train_batch_size is not equal to 256 != 4",
    ],
)  # fmt: skip
def test_a_configuration_that_a_trainer_refuses_is_invalid_and_no_crash(said: str) -> None:
    log = f"[rank0]: Traceback (most recent call last):\n[rank0]: {said}\n"
    outcome = classify(evidence(log))
    assert (outcome.kind, outcome.message) == (Kind.INVALID, said)
    tee = f"[default0]:[rank0]: {said}\ntorch.distributed.elastic.ChildFailedError: \n"
    assert classify(evidence(tee)).kind is Kind.INVALID
    # Handled, and the trial succeeds or fails of something else.
    assert classify(evidence(log, code=0, result={"status": "ok"})).kind is Kind.OK
    assert classify(evidence(f"{said}\n[rank0]: KeyError: 'lr'\n")).kind is Kind.CRASH
    # A warning, or of other things.
    assert classify(evidence(said.partition(": ")[2])).kind is Kind.CRASH


@pytest.mark.parametrize(
    "said", ["ValueError: the image's height must be divisible by 8", "KeyError: 'batch_size'"]
)
def test_what_no_parallel_configuration_causes_is_a_crash(said: str) -> None:
    assert classify(evidence(said)).kind is Kind.CRASH
