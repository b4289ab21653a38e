"""Lower bound on the trials that unpriced parameters cost, whatever the search.

``python -m benchmarks.search.floor`` computes it for the kernel and the data workers of
``varied.py``. The search knows how fast every configuration is apart from these two parameters, how
large their effects are, and that the effects multiply, but not which value has which effect. The
bound is the optimal decision tree over all assignments.
"""

from __future__ import annotations

from functools import cache
from itertools import permutations, product
from math import exp, inf, log

from benchmarks.search.varied import KERNELS, WORKERS
from workflows.replay.play import NEAR

MOST_TRIALS = 6  # enough to find a good value under every assignment


def fewest(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    """Geometric mean of the trials until one is within NEAR of the best.

    Args:
        first, second: share of the best speed that each value of the two parameters allows.
    """
    drawn = list(product(permutations(first), permutations(second)))
    cells = list(product(range(len(first)), range(len(second))))
    speeds = [[round(one[i] * other[j], 9) for i, j in cells] for one, other in drawn]

    @cache
    def logs(possible: tuple[int, ...], trial: int) -> float:
        """Least sum of log(trials) over the assignments that are still possible."""
        if trial > MOST_TRIALS:
            return inf
        least = inf
        for cell in range(len(cells)):
            told: dict[float, list[int]] = {}
            for one in possible:
                told.setdefault(speeds[one][cell], []).append(one)
            if len(told) == 1 and min(told) < 1 - NEAR:
                continue  # its result is certain and bad
            rest = (
                len(some) * log(trial) if speed >= 1 - NEAR else logs(tuple(some), trial + 1)
                for speed, some in told.items()
            )
            least = min(least, sum(rest))
            if trial == 1:
                break  # before any trial all values are alike
        return least

    return exp(logs(tuple(range(len(drawn))), 1) / len(drawn))


if __name__ == "__main__":
    print(f"{fewest(tuple(KERNELS.values()), tuple(WORKERS.values())):.2f}")
