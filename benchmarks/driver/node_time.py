"""Use of the nodes' time in a search, beside the bound that the widths of its trials allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from scipy.optimize import linprog

from analysis.run.fold import Run
from analysis.run.trial import COMPLETED


def node_time(
    run: Run, usable: Sequence[tuple[float, int]], until: float, max_concurrent: int
) -> dict[str, float]:
    """Shares of the node time from the opening until no new configuration is started.

    Args:
        run: a search that has ended.
        usable: times from which on so many nodes were usable.
        until: at the latest.
        max_concurrent: trials at once, at most.
    """
    attempts = [a for t in run.trials.values() for a in t.attempts]
    # Later only finalists are measured again, and what a node failed runs again.
    last_t = max(t.attempts[0].started_t for t in run.trials.values() if t.attempts)
    begin, end = run.opened_t[0], min(until, last_t)
    held_s: dict[int, float] = {}  # trial-seconds of each width
    useful = 0.0
    for attempt in attempts:
        overlap_s = min(end, attempt.ended_t or end) - min(end, attempt.started_t)
        width = len(attempt.nodes)
        held_s[width] = held_s.get(width, 0.0) + overlap_s
        useful += width * overlap_s * (attempt.kind in COMPLETED)
    edges = [*(t for t, _ in usable), end]
    phases = [
        (nodes, max(0.0, min(after, end) - t))
        for (t, nodes), after in zip(usable, edges[1:], strict=True)
    ]
    share = {n: allowed(n, held_s, max_concurrent) for n in {nodes for nodes, _ in phases}}
    allowed_s = sum(share[nodes] * nodes * length_s for nodes, length_s in phases)
    there_s = usable[0][1] * (end - begin)
    return {
        "hours": (end - begin) / 3600,
        "allowed_share": allowed_s / there_s,
        "held_share": sum(w * s for w, s in held_s.items()) / there_s,
        "useful_share": useful / there_s,
        "useful_of_allowed": useful / allowed_s,
    }


def allowed(nodes: int, held_s: Mapping[int, float], max_concurrent: int) -> float:
    """Greatest share of ``nodes`` that trials of these widths can hold on average.

    Gilmore and Gomory's pattern formulation of packing: the least time in which patterns that fit
    give every width its time.

    Args:
        nodes: that are usable.
        held_s: trial-seconds of each width.
        max_concurrent: trials at once, at most.
    """
    *wide, narrowest = sorted(held_s, reverse=True)
    patterns = []
    for counts in product(*(range(nodes // width + 1) for width in wide)):
        left = nodes - sum(n * w for n, w in zip(counts, wide, strict=True))
        places = max_concurrent - sum(counts)
        if left >= 0 and places >= 0:
            patterns.append([*counts, min(left // narrowest, places)])
    demand_s = [held_s[width] for width in (*wide, narrowest)]
    best = linprog(
        np.ones(len(patterns)), A_ub=-np.array(patterns, dtype=float).T, b_ub=-np.array(demand_s)
    )
    return float(sum(w * s for w, s in held_s.items()) / (nodes * best.fun))
