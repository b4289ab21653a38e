"""Searching logs by a user's patterns in a process that can be killed.

``(a+)+$`` does not end on a line of a few hundred characters, and Python's ``re`` neither takes a
time limit nor lets another thread run meanwhile. The process has a limit on CPU time, which a busy
machine does not use up.
"""

from __future__ import annotations

import json
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foundation.python import module_argv
from slurm.logs.patterns import FoundNothingError, LogFormat, read_logs

MAX_CPU_S = 20
_MAX_WALL_S = 300.0


def read_apart(
    log: LogFormat, texts: Sequence[str], warmup_steps: int = 0, num_gpus: int = 1
) -> tuple[Mapping[str, Any], int]:
    """:func:`slurm.logs.patterns.read_logs` in a process of its own.

    Also raises FoundNothingError if the search takes more than :data:`MAX_CPU_S` seconds of CPU
    time, or fails.
    """
    job = (MAX_CPU_S, log, texts, warmup_steps, num_gpus)
    try:
        done = subprocess.run(
            module_argv("slurm.logs.apart"),
            cwd=Path(__file__).parents[2],
            input=pickle.dumps(job),
            capture_output=True,
            timeout=_MAX_WALL_S,
            start_new_session=True,  # Ctrl-C is for the driver alone
        )
    except subprocess.TimeoutExpired:
        raise _too_slow(log) from None
    if done.returncode == -signal.SIGXCPU:
        raise _too_slow(log)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        said = said or f"ended by signal {-done.returncode}"
        raise FoundNothingError(f"the patterns cannot be searched for: {said}")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise FoundNothingError(answer["error"])
    return answer["metrics"], answer["steps"]


def _too_slow(log: LogFormat) -> FoundNothingError:
    return FoundNothingError(
        f"the patterns ({', '.join(log.patterns)}) take more than {MAX_CPU_S} s of CPU time on "
        "the logs; a repetition within a repetition, as in '(a+)+', makes one slow"
    )


def _serve() -> None:
    cpu_s, log, texts, warmup_steps, num_gpus = pickle.load(sys.stdin.buffer)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard_s = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, hard_s))
    try:
        metrics, steps = read_logs(log, texts, warmup_steps, num_gpus)
        answer: dict[str, Any] = {"metrics": metrics, "steps": steps}
    except FoundNothingError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    _serve()
