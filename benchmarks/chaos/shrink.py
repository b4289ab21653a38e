"""Leaving out what a failure does not need."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks.chaos.plan import Plan

TRIES = 2  # of a smaller plan: the times of a round are not its seed's


def shrink(plan: Plan, fails: Callable[[Plan], bool], within_s: float) -> Plan:
    """The smallest plan found that still fails, by leaving out faults, cases and extras.

    Args:
        plan: that failed.
        fails: plays a plan once.
        within_s: no further plan is begun after that.
    """
    deadline = time.monotonic() + within_s
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(plan):
            for _ in range(TRIES):
                if time.monotonic() > deadline:
                    return plan
                if fails(candidate):
                    plan, smaller = candidate, True
                    break
            if smaller:
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    for fault in plan.faults:
        yield plan.without(fault)
    for case in plan.cases:
        if case != "healthy":
            cases = tuple(c for c in plan.cases if c != case)
            yield _within(replace(plan, cases=cases))
    if plan.repeats:
        yield replace(plan, repeats=0)
    if plan.policy != "random":
        yield replace(plan, policy="random")
    if len(plan.widths) > 1:
        yield from (_within(replace(plan, widths=(width,))) for width in plan.widths)
    if len(plan.xs) > 1:
        yield from (_within(replace(plan, xs=(x,))) for x in plan.xs)


def _within(plan: Plan) -> Plan:
    """The plan with no more trials than it has configurations."""
    return replace(plan, trials=min(plan.trials, plan.configurations))


def script(plan: Plan) -> str:
    """A shell script that plays a plan."""
    comment = f"# {plan}"
    return f"{comment}\npython -m benchmarks.chaos --plan {shlex.quote(plan.to_json())}"
