"""The program that a sweep runs on every node: it ends all processes of some trials.

``python -m slurm.sweep.node NODE_VARIABLE RANK_VARIABLE TRIAL...`` prints one line: the value of
NODE_VARIABLE, by which the driver knows the node, and the processes that do not die. Processes
without RANK_VARIABLE are the driver's own and are spared; ``-`` spares none.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection

from slurm import processes
from slurm.trial import carries

WORD = "MESHTUNE_SWEPT"
ALL = "-"
GONE_S = 10.0  # SIGKILL works at once, unless a process is stuck in the kernel
_LOOK_AGAIN_S = 0.2  # a daemon of a killed mpiexec may be about to start a rank


def end_trials(names: Collection[str], rank_variable: str = ALL) -> set[int]:
    """Kill the processes of these trials on this machine; returns those that do not die."""

    def of_trial(env: dict[str, str]) -> bool:
        return carries(env, names) and (rank_variable in env or rank_variable == ALL)

    def find() -> set[int]:
        return processes.with_environ(of_trial)

    left = processes.end_all(find, deadline_s=GONE_S)
    if names and not left:
        time.sleep(_LOOK_AGAIN_S)
        left = processes.end_all(find, deadline_s=GONE_S)
    return left


def main() -> None:
    node_variable, rank_variable, *names = sys.argv[1:]
    left = end_trials(names, rank_variable)
    # One write, so that output of other nodes cannot get into the line.
    said = f"{WORD} {os.environ[node_variable]} {','.join(map(str, sorted(left)))}\n"
    os.write(1, said.encode())


if __name__ == "__main__":
    main()
