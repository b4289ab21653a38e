"""Speed of pricing configurations by the cost model.

    python -m benchmarks.cost_model.pricing [--repeats 5]

Valid configurations of shipped spaces are drawn and encoded beforehand. Timed are the predictions
that a ranking needs: memory, time and the probability to fit. Intervals are needed only for
configurations that are shown and are timed apart. numpy is limited to one thread. The goal is
100,000 configurations a second, so that a space of a million is ranked in ten seconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from analysis.prediction.pricing import Pricing
from benchmarks.printing import machine
from search_spaces import load_space
from search_spaces.points.candidates import Candidates

SPACES = ("gpt_22b_frontier", "gpt_175b_frontier", "gpt_1t_frontier", "gpt_20b_zero_topo_frontier")
CONFIGS, LIMIT = 100_000, 100_000


def rates(name: str, repeats: int) -> tuple[list[float], list[float]]:
    """Configurations priced, and intervals computed, per CPU second in each repeat."""
    space = load_space(name)
    pricing, candidates = Pricing(space), Candidates(space)
    indices = candidates.indices(CONFIGS, np.random.default_rng(0), [], 2**31)
    indices = np.resize(indices, CONFIGS)  # smaller spaces are priced over again
    jobs = pricing.jobs(candidates.columns(indices))
    priced, widened = [], []
    for _ in range(repeats):
        began = time.process_time()
        prediction = pricing.model.predict(jobs)
        between = time.process_time()
        prediction.interval_s()
        priced.append(CONFIGS / (between - began))
        widened.append(CONFIGS / (time.process_time() - between))
    return priced, widened


def _spread(found: Sequence[float]) -> str:
    return f"{statistics.median(found):,.0f} ({min(found):,.0f}-{max(found):,.0f})"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cost_model.pricing", description=__doc__
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    repeats = parser.parse_args(argv).repeats
    print(machine([f"{repeats} repeats, one core"]))
    print(
        f"\n| {CONFIGS:,} configurations of | a second: median (least-most) | >= {LIMIT:,} | ",
        end="",
    )
    print("intervals a second |\n|---|---|---|---|")
    for name in SPACES:
        priced, widened = rates(name, repeats)
        reached = "yes" if statistics.median(priced) >= LIMIT else "MISSED"
        print(f"| {name} | {_spread(priced)} | {reached} | {_spread(widened)} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
