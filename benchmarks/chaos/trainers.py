"""The trainer of every round: it trains well, or misbehaves as its case says.

    python -m benchmarks.chaos.trainers CASE X EVIDENCE

A case is a function of the rank with ``@case(...)``, which also says how a trial of it may end.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.chaos.rank import CASES, Rank, case, patiently

__all__ = ["CASES"]

HANG_S = 3600.0


# ---- healthy ----


@case("ok")
def healthy(rank: Rank) -> None:
    rank.train()
    rank.result()


@case("ok")
def prints_result(rank: Rank) -> None:
    rank.train()
    if rank.first:
        print("MESHTUNE_RESULT", json.dumps({"speed": rank.speed}), flush=True)


@case("ok")
def progress_bar(rank: Rank) -> None:
    """Megabytes without an end of line, as progress bars are."""
    for step in range(20000):
        sys.stderr.write(f"step {step:5d} [{'=' * (step % 60):60s}] 12.3 it/s\r")
    sys.stderr.flush()
    rank.result()


@case("ok")
def endless_line(rank: Rank) -> None:
    for _ in range(6):
        os.write(1, b"." * (1 << 20))
    os.write(1, b"\n")
    rank.result()


@case("ok")
def floods(rank: Rank) -> None:
    line = b"x" * 200 + b"\n"
    for _ in range(20):
        os.write(1, line * 5000)
    rank.result()


@case("ok")
def binary_output(rank: Rank) -> None:
    """Control characters, an escape sequence and bytes that are no text."""
    os.write(2, b"\x1b[31mred\x1b[2J\x07 \x00 \xff\xfe step 1\n")
    rank.train()
    rank.result()


@case("ok")
def leaves_daemon(rank: Rank) -> None:
    """A helper in a session of its own, abandoned by its parents, deaf to SIGTERM."""
    rank.train()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(HANG_S)
        os._exit(0)
    rank.result()


@case("ok")
def closes_everything(rank: Rank) -> None:
    """Leaves no descriptor open, as a daemon does; what it starts keeps the pipes."""
    rank.train()
    if os.fork() == 0:
        os.setsid()
        for _ in range(3000):
            os.write(1, b"a helper that nobody waits for\n")
            time.sleep(0.2)
        os._exit(0)
    rank.result()
    os.closerange(0, 1024)
    os._exit(0)


@case("ok")
def result_by_link(rank: Rank) -> None:
    """Beside files whose names no shell, terminal or decoder likes."""
    rank.train()
    if rank.first:
        for name in (b"\x1b[2J", b"\xff\xfe", b"-rf", b"a\nb", b"$(reboot)", b"..."):
            patiently(partial(Path(os.fsdecode(name)).write_text, "x"))
        patiently(lambda: Path("figures").write_text(json.dumps({"speed": rank.speed})))
        patiently(lambda: Path("result.json").symlink_to("figures"))


@case("ok", "crash")
def result_then_extra_keys(rank: Rank) -> None:
    """A result of megabytes: read or refused, but never a burden."""
    rank.train()
    losses = ", ".join(["0.5"] * 1_000_000)
    rank.result(f'{{"status": "ok", "speed": {rank.speed}, "loss": [{losses}]}}')


@case("ok")
def speaks_as_an_agent(rank: Rank) -> None:
    """Words of agents, of today and of earlier versions, and what no parser likes."""
    for number in range(rank.world_size):
        words = (f"{number} {word}\n" for word in ("end 0 0", "gone", "sig 15 0", "hello 1 7"))
        os.write(1 + number % 2, f"\n{''.join(words)}".encode())
    old = json.dumps({"trial": rank.trial, "rank": rank.rank, "code": 0})
    for said in (old, old.replace("0}", "1e999}"), "[" * 5000, '{"rank": {}, "code":1e999}'):
        os.write(2, f"\x1e\nMESHTUNE_RANK {said}\n".encode())
    rank.train(1.0)
    rank.result()


# ---- failing as trainers do ----


@case("crash")
def speaks_as_slurm(rank: Rank) -> None:
    """Sentences of Slurm that would cost healthy nodes, or excuse the trainer for ever."""
    node = os.environ.get("SLURMD_NODENAME", "n1")
    step = f"slurmstepd-{node}: error: *** STEP 1.0 ON {node} CANCELLED AT 2026-11-21T03:00:11"
    for said in (
        f"srun: error: Node failure on {node}",
        *(f"{step} DUE TO {why} ***" for why in ("PREEMPTION", "NODE FAILURE", "TIME LIMIT")),
        f"{step} ***",
        "srun: error: Slurm job 1 has expired",
        "srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd on node 0",
        f"srun: error: Task launch for StepId=1.0 failed on node {node}: Connection refused",
        f"meshtune: {node}: no program python",
    ):
        os.write(2, f"{said}\n".encode())
    raise SystemExit(3)


@case("crash")
def raises(rank: Rank) -> None:
    rank.train()
    raise RuntimeError("this trainer is broken: \x1b[31mred\x1b[0m\x07")


@case("crash")
def no_result(rank: Rank) -> None:
    rank.train()


@case("crash", killed=["ok"])
def fails_after_result(rank: Rank) -> None:
    rank.train()
    rank.result()
    raise SystemExit(1)


@case("crash")
def breaks_down(rank: Rank) -> None:
    rank.train()
    os.kill(os.getpid(), signal.SIGSEGV)


@case("oom")
def device_oom(rank: Rank) -> None:
    rank.train()
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")


@case("oom")
def device_oom_in_a_bar(rank: Rank) -> None:
    """The words that decide, in the middle of a long line."""
    sys.stderr.write("step 1 [=====]\r" * 50_000)
    sys.stderr.write("\rtorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    sys.stderr.write("step 2 [=====]\r" * 1000)
    sys.stderr.flush()
    raise SystemExit(1)


@case("host_oom")
def host_oom(rank: Rank) -> None:
    rank.train()
    raise MemoryError


@case("invalid")
def refuses(rank: Rank) -> None:
    rank.result(json.dumps({"status": "invalid", "message": "no such \x1b[2Jshape"}))
    raise SystemExit(1)


@case("diverged")
def not_a_number(rank: Rank) -> None:
    rank.train()
    rank.result('{"status": "ok", "speed": NaN}')


@case("diverged", "crash")
def overflows(rank: Rank) -> None:
    rank.train()
    rank.result('{"status": "ok", "speed": 1e999, "step": 1' + "0" * 5000 + "}")


@case("timeout", cost_s=10)
def hangs(rank: Rank) -> None:
    rank.train()
    time.sleep(HANG_S)


@case("timeout", cost_s=20)
def ignores_sigterm(rank: Rank) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rank.train()
    time.sleep(HANG_S)


@case("timeout", killed=["ok"], cost_s=10)
def hangs_after_result(rank: Rank) -> None:
    rank.result()
    time.sleep(HANG_S)


@case("crash", cost_s=13)
def one_rank_dies(rank: Rank) -> None:
    """The others wait for it in a collective for ever."""
    rank.train()
    if rank.first:
        raise SystemExit(3)
    time.sleep(HANG_S)


# ---- results and logs that are none ----


@case("crash")
def deep_result(rank: Rank) -> None:
    rank.train()
    rank.result('{"status": "ok", "speed": 1, "deep": ' + "[" * 5000 + "]" * 5000 + "}")


@case("crash")
def result_is_nested_700_deep(rank: Rank) -> None:
    rank.train()
    rank.result('{"status": "ok", "deep": ' + "[" * 700 + "]" * 700 + "}")


@case("crash")
def result_is_a_folder(rank: Rank) -> None:
    if rank.first:
        Path("result.json").mkdir(exist_ok=True)
        Path("result.json/in").mkdir(exist_ok=True)


@case("crash")
def result_is_a_pipe(rank: Rank) -> None:
    if rank.first:
        patiently(lambda: os.mkfifo("result.json"))


@case("crash")
def result_is_a_device(rank: Rank) -> None:
    if rank.first:
        patiently(lambda: Path("result.json").symlink_to("/dev/zero"))


@case("crash")
def result_is_enormous(rank: Rank) -> None:
    if rank.first:
        with Path("result.json").open("w") as file:
            file.truncate(1 << 33)  # sparse


@case("ok", "crash")
def logs_are_folders(rank: Rank) -> None:
    _replace_logs(rank, lambda path: path.mkdir())


@case("ok", "crash")
def logs_are_pipes(rank: Rank) -> None:
    _replace_logs(rank, os.mkfifo)


@case("ok", "crash")
def logs_are_devices(rank: Rank) -> None:
    _replace_logs(rank, lambda path: path.symlink_to("/dev/zero"))


@case("ok", "crash")
def removes_its_folder(rank: Rank) -> None:
    rank.train()
    if rank.first:
        shutil.rmtree(Path.cwd(), ignore_errors=True)


def _replace_logs(rank: Rank, make: Callable[[Path], object]) -> None:
    rank.train()
    if rank.first:
        for name in ("stdout.log", "stderr.log"):
            with contextlib.suppress(OSError):
                Path(name).unlink()
            patiently(partial(make, Path(name)))
    rank.result()


def main() -> None:
    name, x, evidence = sys.argv[1:]
    rank = Rank(int(x), Path(evidence))
    rank.hold_node()
    CASES[name].act(rank)


if __name__ == "__main__":
    main()
