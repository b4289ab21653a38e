"""One process of a round on a shared study: threads ask, and tell what a healthy trial gives.

python -m benchmarks.chaos.study_worker SPACE FOLDER EVIDENCE THREADS
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from analysis import RunError
from benchmarks.chaos.rank import speed
from meshtune import Study

T = TypeVar("T")


def main(space: str, folder: str, evidence: str, threads: str) -> None:
    study = patiently(lambda: Study(space, folder, policy="random"))
    name = study._worker.name  # it is in the names of the attempts that are asked for here
    Path(evidence, name).write_text(str(os.getpid()))
    every = [
        threading.Thread(target=work, args=(study, Path(evidence, f"{name}.told")))
        for _ in range(int(threads))
    ]
    for each in every:
        each.start()
    for each in every:
        each.join()
    try:
        study.close()
    except (OSError, RunError) as error:  # results.csv is not written: a full disk, no file
        print(f"closed: {error}", flush=True)


def work(study: Study, told: Path) -> None:
    with patiently(lambda: told.open("a", buffering=1)) as file:  # while there are files
        while (trial := patiently(study.ask)) is not None:
            time.sleep(random.uniform(0.1, 0.6))
            number, result = trial.number, {"speed": figure(trial.config)}
            patiently(lambda number=number, result=result: study.tell(number, result))
            file.write(f"{number}\n")


def figure(config: dict[str, Any]) -> float:
    """The figure of a configuration."""
    return speed(int(config["x"]), 2 * int(config["num_nodes"]))


def patiently(call: Callable[[], T]) -> T:
    """Call again while the machine is the obstacle, as the guide says."""
    while True:
        try:
            return call()
        except (OSError, RunError) as error:
            print(f"again: {error}", flush=True)
            time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
