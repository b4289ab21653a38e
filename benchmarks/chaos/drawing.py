"""Draws the plan of a round from a seed."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from importlib import import_module

from benchmarks.chaos.faults import FAULTS
from benchmarks.chaos.plan import Plan, Planned
from benchmarks.chaos.trainers import CASES

for _module in ("driver", "file", "mpiexec", "process", "slurm"):  # each adds its rows to FAULTS
    import_module(f"benchmarks.chaos.{_module}_faults")

MAX_COST_S = 22.0  # of a round's cases and faults, beyond a healthy round
MAX_INTERRUPTIONS = 3  # a trial is given up after as many retries


def draw(
    seed: int,
    number: int,
    launcher: str,
    only: Collection[str] = (),
    lacks: Collection[str] = (),
    max_cost_s: float = MAX_COST_S,
    shared: bool | None = None,
) -> Plan:
    """Draw the plan of a campaign's round.

    Args:
        seed: the campaign's.
        number: of the round.
        launcher: ``local``, ``srun`` or ``mpiexec``.
        only: names of faults that may be drawn; empty: all of the launcher's.
        lacks: names of faults and cases that the machine cannot have; they are left out.
        max_cost_s: of its cases and faults, beyond a healthy round.
        shared: whether trials of srun share launches; None: drawn, too.
    """
    rng = random.Random(f"{seed}/{number}/{launcher}")
    faults, cost_s = _faults(rng, launcher, only, max_cost_s)
    cases = _cases(rng, max_cost_s - cost_s)
    if any(f.fault == "remove_logs" for f in faults):  # which only a trial's log can show
        cases = (cases[0], "prints_result", *(c for c in cases[1:-1] if c != "prints_result"))
    faults = tuple(fault for fault in faults if fault.fault not in lacks)
    cases = tuple(name for name in cases if name not in lacks)
    xs = (1, 2) if len(cases) <= 2 else (1,)
    widths = (1, 2) if len(cases) * len(xs) <= 4 else rng.choice([(1,), (2,)])
    configurations = len(cases) * len(xs) * len(widths)
    trials = rng.choice([configurations, configurations, max(3, configurations - 2)])
    # A trial has three lines in the journal: a later fault would never come.
    faults = tuple(replace(fault, after=min(fault.after, 3 * trials)) for fault in faults)
    return Plan(
        launcher=launcher,
        seed=rng.randrange(1000),
        policy=rng.choice(["random", "random", "meshtune"]),
        cases=cases,
        widths=widths,
        xs=xs,
        trials=trials,
        repeats=rng.choice([0, 0, 0, 2]),
        faults=faults,
        report=rng.random() < 0.3 or any(f.fault == "report_unwritable" for f in faults),
        shared=launcher == "srun" and (rng.choice([False, True]) if shared is None else shared),
    )


def _faults(
    rng: random.Random, launcher: str, only: Collection[str], max_cost_s: float
) -> tuple[tuple[Planned, ...], float]:
    names = [n for n, f in FAULTS.items() if launcher in f.launchers and (not only or n in only)]
    weights = [FAULTS[name].weight for name in names]
    drawn: list[Planned] = []
    cost_s, interruptions = 0.0, 0
    for name in rng.choices(names, weights, k=rng.choice([1, 2, 2, 3, 4])) if names else []:
        row = FAULTS[name]
        after = rng.choice([0, rng.randrange(2, 20), rng.randrange(2, 20), rng.randrange(2, 20)])
        delay_s = rng.uniform(0, 2.5 if after == 0 else 0.5)
        hold_s = rng.uniform(*row.hold_s)
        planned = Planned(name, after, round(delay_s, 3), round(hold_s, 2), round(rng.random(), 3))
        if cost_s + row.cost_s > max_cost_s or interruptions + row.interrupts > MAX_INTERRUPTIONS:
            continue
        cost_s += row.cost_s
        interruptions += row.interrupts
        drawn.append(planned)
    return tuple(sorted(drawn, key=lambda f: f.after)), cost_s


def _cases(rng: random.Random, left_s: float) -> tuple[str, ...]:
    """Up to six cases, the first of them healthy, within ``left_s``."""
    cases = ["healthy"]
    for name in rng.sample(sorted(CASES), k=rng.randrange(2, 6)):
        if name not in cases and CASES[name].cost_s <= left_s:
            cases.append(name)
            left_s -= 2 * CASES[name].cost_s
    return tuple(cases)
