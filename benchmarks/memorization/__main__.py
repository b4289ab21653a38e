"""Recitation of training texts by a small GPT, with and without the goldfish loss.

    python -m benchmarks.memorization [--repetitions 0,1,4,6,32,64,128] [--passages 16]
        [--warm-up-steps 50] [--trials 1] [--json FILE] [--plot FILE]

Singh et al. 2024, section VIII, small: buckets of passages of Python's standard library are
repeated so many times in training; then the model is given the beginning of each and writes its
last 50 tokens. A passage is memorized if all are right. Exits 1 if, with the goldfish loss, any
bucket is recited more than the control, or without it none is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.memorization.study import GOLDFISH, MODEL, RECITED, Study, recite

LOSSES = ("standard", "goldfish")
Results = dict[str, dict[int, list[dict[str, float]]]]
"""By loss and repetitions: of each trial ``exact`` and ``tokens``."""


def report(results: Mapping[str, Mapping[int, Sequence[Mapping[str, float]]]]) -> bool:
    """Print the table; whether the goldfish loss keeps what the standard one gives away."""
    print("| repetitions | standard: exact match | of the tokens | goldfish: exact match ", end="")
    print("| of the tokens |\n|---|---|---|---|---|")
    for number in results["standard"]:
        cells = [
            f"{100 * mean(results[loss][number], key):.0f} %"
            for loss in LOSSES
            for key in ("exact", "tokens")
        ]
        print(f"| {number} | {' | '.join(cells)} |")
    control = mean(results["goldfish"][0], "exact")
    kept = all(mean(trials, "exact") <= control for trials in results["goldfish"].values())
    recited = any(mean(trials, "exact") > control for trials in results["standard"].values())
    return kept and recited


def mean(trials: Sequence[Mapping[str, float]], key: str) -> float:
    return statistics.mean(trial[key] for trial in trials)


def plot(results: Mapping[str, Mapping[int, Any]], path: Path) -> None:
    """Exact match by repetitions, with the least and the most of the trials, as Figure 11."""
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    repetitions = list(results["standard"])
    places = np.arange(len(repetitions))
    for offset, loss, color in ((-0.2, "standard", "#8a8f98"), (0.2, "goldfish", "#e0a030")):
        shares = [[100 * t["exact"] for t in results[loss][number]] for number in repetitions]
        heights = np.array([statistics.mean(each) for each in shares])
        ends = np.array([[min(each), max(each)] for each in shares]).T
        errors = np.abs(ends - heights)
        axes.bar(places + offset, heights, 0.38, yerr=errors, color=color, label=f"{loss} loss")
    axes.set_xticks(places, [str(number) for number in repetitions])
    axes.set_xlabel("repetitions in training (0: control)")
    axes.set_ylabel(f"exact match of {RECITED} tokens (%)")
    axes.set_ylim(0, 100)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def numbers(text: str) -> list[int]:
    return sorted({0, *(int(part) for part in text.split(","))})


def main() -> int:
    """Train two models a trial, then report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=numbers, default=[0, 1, 4, 6, 32, 64, 128])
    parser.add_argument("--passages", type=int, default=16, help="in each bucket")
    parser.add_argument("--warm-up-steps", type=int, default=50)
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where all figures go")
    parser.add_argument("--plot", type=Path, help="where the figure goes")
    arguments = parser.parse_args()
    if arguments.plot:
        import matplotlib.figure  # noqa: F401 - without it the training has no picture
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {version('torch')}")
    print(f"model {MODEL}, goldfish {GOLDFISH}, {arguments.passages} passages in each bucket\n")
    results: Results = {loss: {n: [] for n in arguments.repetitions} for loss in LOSSES}
    for trial in range(arguments.trials):
        study = Study(arguments.repetitions, arguments.passages, arguments.warm_up_steps, trial + 1)
        for loss in LOSSES:
            begin_s = time.process_time()
            found = recite(study, goldfish=loss == "goldfish")
            for number, recited in found.items():
                results[loss][number].append(asdict(recited))
            print(f"{loss} loss, trial {trial + 1}: {time.process_time() - begin_s:.0f} s of CPU")
    print()
    good = report(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    if arguments.plot:
        plot(results, arguments.plot)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
