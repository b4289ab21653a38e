"""The order in which a damaged journal's intact lines were written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from analysis.run.lines import FIRST

_Following = Mapping[str, Sequence["Line"]]


@dataclass(frozen=True)
class Line:
    """An intact line: its number in the file, its record and its checksum."""

    number: int
    record: Mapping[str, Any]
    checksum: str

    @property
    def after(self) -> str:
        """The checksum of the line before it when it was written."""
        return str(self.record.get("after"))


def in_order(
    lines: Iterable[Line], damaged: Collection[int]
) -> tuple[list[Line], list[tuple[int, str]]]:
    """The lines in the order written, and notes on what was left out, moved or lost.

    Each line names the one before it, so lines form chains; a chain begins after a missing line. If
    two lines follow one, two drivers wrote: the longer branch is kept. ``damaged`` lines are
    already left out.
    """
    notes: list[tuple[int, str]] = []
    known: dict[str, Line] = {}
    following: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line.checksum in known:
            notes.append((line.number, f"left out: it repeats line {known[line.checksum].number}"))
        else:
            known[line.checksum] = line
            following[line.after].append(line)
    ordered = _longest(following, FIRST)
    for begin in [after for after in following if after not in known and after != FIRST]:
        chain = _longest(following, begin)
        if chain[0].number - 1 not in damaged:
            notes.append((chain[0].number, "what was written before it is lost"))
        ordered += chain
    for before, line in pairwise(ordered):
        if line.number < before.number:
            notes.append((line.number, f"moved behind line {before.number}, which it follows"))
    taken = {line.number: line for line in ordered}
    for line in known.values():
        if line is not taken.get(line.number):
            notes.append((line.number, "left out: a second driver wrote it, beside the first"))
    return ordered, notes


def _longest(following: _Following, last: str) -> list[Line]:
    """The lines after a checksum, the longest branch at each fork."""
    chain: list[Line] = []
    seen = {last}
    while nexts := [line for line in following.get(last, ()) if line.checksum not in seen]:
        if len(nexts) > 1:
            branches = [[line, *_longest(following, line.checksum)] for line in nexts]
            return chain + max(branches, key=len)
        chain.append(nexts[0])
        last = nexts[0].checksum
        seen.add(last)
    return chain
