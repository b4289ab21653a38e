"""Counts of a space: raw and valid configurations, and those that each rule removes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foundation.quantities import value_text
from search_spaces.errors import SpaceError
from search_spaces.hints import notes as notes_of
from search_spaces.parameters import Parameter
from search_spaces.points.enumeration import MAX_EDGES, MAX_WORK, ValidConfigs, affordable, terms
from search_spaces.space import SearchSpace

SAMPLE = 1_000_000


@dataclass(frozen=True)
class RuleCount:
    """Number of configurations that one rule removes."""

    name: str
    text: str
    alone: int  # of all raw configurations
    in_order: int  # of those that satisfy the rules before it


@dataclass(frozen=True)
class CheckReport:
    """The size of a space; unless ``exact``, estimated from random configurations."""

    space: SearchSpace
    raw: int
    valid: int
    rules: tuple[RuleCount, ...]
    exact: bool

    @property
    def notes(self) -> list[str]:
        notes = []
        if missing := self.space.unmeasured():
            notes.append(
                f"the nodes must measure what this machine does not: {missing}; a search on this "
                "machine is refused"
            )
        notes += notes_of(self.space)
        if not self.exact:
            notes.append("counts are estimates from random configurations")
        return notes

    def text(self) -> str:
        """The report as plain text, a table of rules below the totals."""
        about = "" if self.exact else "about "
        share = 100 * self.valid / self.raw
        lines = [
            f"{self.space.name}: {self.raw:,} raw configurations, "
            f"{about}{self.valid:,} valid ({share:.3g} %)",
            *(f"  {name}: {_values(p)}" for name, p in self.space.parameters.items()),
        ]
        if self.space.more_objectives:
            sought = [" ".join(*o.as_dict().items()) for o in self.space.objectives]
            lines.append(f"sought, as a Pareto front: {', '.join(sought)}")
        removing = [rule for rule in self.rules if rule.alone]
        if removing:
            width = max(len(rule.name) for rule in removing)
            lines.append(f"{'removed by':<{width}}  {'alone':>13}  {'in order':>13}")
            lines += [
                f"{rule.name:<{width}}  {rule.alone:>13,}  {rule.in_order:>13,}  {rule.text}"
                for rule in removing
            ]
        kept = [rule.name for rule in self.rules if not rule.alone]
        if kept:
            lines.append(f"satisfied by all: {', '.join(kept)}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def check(space: SearchSpace, max_edges: int = MAX_EDGES) -> CheckReport:
    """Count valid configurations, and those that each rule removes.

    Raises SpaceError if no configuration is valid; it names the rules that remove the most.
    """
    valid = ValidConfigs(space, max_edges=max_edges)
    counts = _counted(space, max_edges) if valid.exact else None
    exact = counts is not None
    if counts is None:
        counts = _estimated(space)
    found = valid.estimate(np.random.default_rng(0))
    if not found:
        raise SpaceError(_impossible(space, counts, not valid.count))
    return CheckReport(space, space.raw_size, round(found), counts, exact)


def _counted(space: SearchSpace, max_edges: int) -> tuple[RuleCount, ...] | None:
    """Exact counts; None if they take too much work."""
    counts = []
    left, before, work = space.raw_size, [], 2 * MAX_WORK
    for rule in space.rules:
        alone = ValidConfigs(space, [rule], max_edges, work)
        work -= alone.work
        removed = space.raw_size - alone.count
        if removed:
            before.append(rule)
        kept = ValidConfigs(space, before, max_edges, work) if removed else None
        if not alone.exact or (kept and not kept.exact):
            return None
        work -= kept.work if kept else 0.0
        after = kept.count if kept else left
        counts.append(RuleCount(rule.name, rule.text, removed, left - after))
        left = after
    return tuple(counts)


def _estimated(space: SearchSpace) -> tuple[RuleCount, ...]:
    generator = np.random.default_rng(0)
    sample = min(SAMPLE, affordable(sum(map(terms, space.rules))))
    raw = {name: generator.choice(p.array, sample) for name, p in space.parameters.items()}
    facts, left = space.columns(raw), np.ones(sample, dtype=bool)
    scale = space.raw_size / sample
    counts = []
    for rule in space.rules:
        kept = np.broadcast_to(rule.holds(facts), (sample,))
        alone, in_order = np.count_nonzero(~kept), np.count_nonzero(left & ~kept)
        left &= kept
        counts.append(
            RuleCount(rule.name, rule.text, round(alone * scale), round(in_order * scale))
        )
    return tuple(counts)


def _impossible(space: SearchSpace, counts: tuple[RuleCount, ...], proven: bool) -> str:
    worst = sorted((c for c in counts if c.alone), key=lambda c: -c.alone)[:3]
    head = f"no configuration is valid, of {space.raw_size:,} raw ones"
    if not proven:
        head = f"no valid configuration found at random among {space.raw_size:,} raw ones"
    remedies = {rule.name: f"; {rule.remedy}" for rule in space.rules if rule.remedy}
    of_batch = "; it is mbs * gas * dp: a multiple of the mbs * dp of some configuration"
    remedies |= dict.fromkeys(("tp_within_node", "tp_within_links"), "; allow: [tp_across_nodes]")
    remedies |= {r.name: of_batch for r in space.rules if r.names == {"global_batch_size"}}
    lines = [
        f"  {c.name} removes {c.alone:,} ({100 * c.alone / space.raw_size:.3g} %): {c.text}"
        f"{remedies.get(c.name, '')}"
        for c in worst
    ]
    return "\n".join([f"{space.file}: {head}", *lines])


def _values(parameter: Parameter) -> str:
    if parameter.span is not None:
        scale = "even by the logarithm" if parameter.span.log else "even"
        return f"{parameter.span}, continuous, {scale}; counted as {len(parameter.values):,} values"
    shown = [value_text(value) for value in parameter.values]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:5], "...", *shown[-3:]])
