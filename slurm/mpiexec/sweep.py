"""What a sweep runs on every host: end all processes of some trials, and say what is left.

``python -m slurm.mpiexec.sweep RANK_VARIABLE TRIAL...`` prints one line with its rank, by which the
driver knows the host, and the processes that would not die.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection

from slurm import processes
from slurm.trial import TRIAL_VARIABLE

WORD = "MESHTUNE_SWEPT"
GONE_S = 10.0  # SIGKILL works at once, unless a process is stuck in the kernel
_LOOK_AGAIN_S = 0.2  # a daemon of a killed mpiexec may be about to start a rank


def end_trials(names: Collection[str], gone_s: float = GONE_S) -> set[int]:
    """Kill the processes of these trials on this machine; returns those that are left."""

    def find() -> set[int]:
        return processes.with_environ(lambda env: env.get(TRIAL_VARIABLE) in names)

    left = processes.end_all(find, deadline_s=gone_s)
    if names and not left:
        time.sleep(_LOOK_AGAIN_S)
        left = processes.end_all(find, deadline_s=gone_s)
    return left


def main() -> None:
    variable, *names = sys.argv[1:]
    left = end_trials(names)
    # In one piece, so that no other host's line gets into it.
    said = f"{WORD} {os.environ[variable]} {','.join(map(str, sorted(left)))}\n"
    os.write(1, said.encode())


if __name__ == "__main__":
    main()
