"""``meshtune repair``: rewrite a damaged journal from its intact lines.

Every line has a checksum (:mod:`analysis.run.lines`), so damage to one costs no other. An event
must also fit what precedes it; missing events before it are reconstructed as far as possible.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from analysis.run import events
from analysis.run.fold import Run, apply
from analysis.run.folder import TRIAL_FILE, RunFolder
from analysis.run.lines import (
    FIRST,
    DamagedLineError,
    LaterVersionError,
    RunError,
    check_torn,
    raw_lines,
    sealed,
    sound_within,
    unsealed,
)
from analysis.run.lock import lock
from analysis.run.results import ResultsFile
from foundation.files import FileError, open_regular, read_json
from foundation.messages import shown
from foundation.quantities import counted
from foundation.writing import write_atomically
from search_spaces import load_space

MAX_SPEC_BYTES = 16 << 20
EXCERPT = 100  # characters of a line that is left out
# Marks of a line that began a session; one flipped bit leaves at least one of them intact.
_OPENING = re.compile(rb'"event": "opened"|"space": "[^"]*", "fingerprint": "')


@dataclass(frozen=True)
class Line:
    """An intact line: its number in the file, its record and its checksum."""

    number: int
    record: Mapping[str, Any]
    checksum: str


@dataclass
class Repair:
    run: Run  # the journal's content now
    # what was done, each with a line's number
    notes: list[tuple[int, str]] = field(default_factory=list)
    lines: int = 0  # of the journal now
    backup: Path | None = None  # the original; None if nothing had to be done
    openings: list[int] = field(default_factory=list)  # damaged lines that began a session


def repair_run(directory: Path | str) -> Repair:
    """Rewrite a run's journal from its intact lines; the original is kept beside it.

    Raises RunBusyError if a driver is running it; RunError without a journal or an intact line, or
    if a later version wrote it; OSError without room for the copy: the journal is as it was.
    """
    folder = RunFolder(Path(directory))
    path = folder.journal_file
    if not folder.started:
        raise RunError(f"{shown(path)}: there is no such file; a run folder holds a journal.jsonl")
    with lock(folder.path):
        repair = Repair(Run(folder.path))
        try:
            with open_regular(path) as file:
                found = list(_sound_lines(raw_lines(file), repair))
        except FileError as error:
            raise RunError(str(error)) from None
        lines = _in_order(found, repair)
        missing = MissingEvents(folder, lines, repair.openings)
        records = list(_fitting(lines, missing, repair))
        repair.notes.sort(key=lambda note: note[0])
        repair.lines = len(records)
        if repair.notes:
            if not records:
                raise RunError(
                    f"{shown(path)}: nothing in it is sound; move it away, and the search starts "
                    "anew"
                )
            repair.backup = _back_up(path)
            write_atomically(path, _text(records), private=True, sync=True)
            with suppress(OSError):  # the next search writes it
                ResultsFile(folder).write(repair.run)
    return repair


def _sound_lines(raws: Iterable[bytes], repair: Repair) -> Iterator[Line]:
    """Yield the intact lines; note the others."""
    number, ended = 0, True
    for raw in raws:
        number += ended
        ended = raw.endswith(b"\n")
        try:
            if not ended:
                check_torn(raw)
                raise DamagedLineError("it was not written to its end")
            sound = [unsealed(raw[:-1])]
        except DamagedLineError as error:
            sound = []
            for line in sound_within(raw):
                with suppress(DamagedLineError):  # whole, but of an older version
                    sound.append(unsealed(line))
            text = f", but for {counted(len(sound), 'line')} within it" if sound else ""
            repair.notes.append((number, f"left out{text}: {error}: {_excerpt(raw)}"))
            if not sound and _OPENING.search(raw):
                repair.openings.append(number)
        except LaterVersionError as error:
            raise RunError(f"line {number} of the journal: {error}") from None
        yield from (Line(number, *each) for each in sound)


def _in_order(lines: Iterable[Line], repair: Repair) -> list[Line]:
    """The lines in the order written; notes what is left out, moved or lost besides.

    Each line names the one before it, so lines form chains; a chain begins after a missing line. If
    two lines follow one, two drivers wrote: the longer branch is kept.
    """
    notes, damaged = repair.notes, {number for number, _ in repair.notes}
    known: dict[str, Line] = {}
    following: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line.checksum in known:
            notes.append((line.number, f"left out: it repeats line {known[line.checksum].number}"))
        else:
            known[line.checksum] = line
            following[str(line.record.get("after"))].append(line)
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
    return ordered


def _longest(following: Mapping[str, Sequence[Line]], last: str) -> list[Line]:
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


def _fitting(
    lines: Iterable[Line], missing: MissingEvents, repair: Repair
) -> Iterator[dict[str, Any]]:
    """Yield the records that fit what precedes them, after reconstructed missing ones."""
    for line in lines:
        try:
            t, event = events.time_of(line.record), events.from_record(line.record)
            if event:
                for began_t, before, what in missing.before(repair.run, t, event, line.number):
                    apply(repair.run, began_t, before)
                    yield events.to_record(before, began_t)
                    repair.notes.append((line.number, f"reconstructed before it: {what}"))
            apply(repair.run, t, event)
        except ValueError as error:
            text = f"left out: {error}: {_excerpt(str(line.record).encode())}"
            repair.notes.append((line.number, text))
        else:
            yield {key: v for key, v in line.record.items() if key not in ("after", "crc")}


def _text(records: Iterable[dict[str, Any]]) -> bytes:
    text, last = b"", FIRST
    for record in records:
        line, last = sealed(record, last)
        text += line
    return text


def _back_up(path: Path) -> Path:
    """Copy the journal beside itself, under a new name."""
    for number in count(1):
        copy = path.with_name(f"{path.name}.damaged-{number}")
        try:
            with path.open("rb") as original, copy.open("xb") as file:
                shutil.copymode(path, copy)
                shutil.copyfileobj(original, file)
                file.flush()
                os.fsync(file)
            return copy
        except FileExistsError:
            continue
        except OSError:
            copy.unlink(missing_ok=True)
            raise
    raise AssertionError("count() is endless")


def _excerpt(raw: bytes) -> str:
    text = shown(raw[: 2 * EXCERPT].decode(errors="replace").strip("\0\n"), 2 * EXCERPT)
    return text[:EXCERPT] + ("..." if len(text) > EXCERPT else "")


@dataclass(frozen=True)
class MissingEvents:
    """Reconstructs events whose lines are missing from all intact ``lines``."""

    folder: RunFolder
    lines: Sequence[Line]
    openings: list[int]  # damaged lines that began a session; emptied as they are reconstructed

    def before(
        self, run: Run, t: float, event: events.Event, number: int
    ) -> Iterator[tuple[float, events.Event, str]]:
        """Yield the missing events that ``event`` presupposes: time, event, description.

        ``run`` is the state before it: the caller applies each yielded event to it at once.
        ``number`` is the line of ``event``.
        """
        # Without a session's opening, the idle time before it would count as search time.
        left = [opening for opening in self.openings if opening > number]
        lost = len(left) < len(self.openings) or not run.opened_t or run.closed is not None
        self.openings[:] = left
        if isinstance(event, events.Opened):
            return
        if lost and (opened := self._opened()):
            yield t, opened, "the beginning of its session, of which the seed is not known"
        if not isinstance(event, (events.Started, events.Ended)):
            return
        number, attempt = event.trial, event.attempt
        if number not in run.trials and (proposed := self._proposed(number)):
            yield t, proposed, f"the proposal of trial {number}, which its folder knows"
        trial = run.trials.get(number)
        if trial and isinstance(event, events.Ended) and attempt >= trial.next_attempt:
            began = max(trial.proposed_t, t - max(0.0, event.elapsed_s))
            started = events.Started(
                trial=number, attempt=attempt, name="", nodes=event.nodes, repeat=trial.ended
            )
            yield began, started, f"the start of attempt {attempt} at trial {number}"

    def _opened(self) -> events.Opened | None:
        """The opening of another session, or one made from the run's space."""
        for line in self.lines:
            with suppress(ValueError):
                event = events.from_record(line.record)
                if isinstance(event, events.Opened):
                    return event
        try:
            space = load_space(self.folder.space_file)
        except FileError:
            return None
        return events.Opened.of(space, launcher="")

    def _proposed(self, number: int) -> events.Proposed | None:
        """The proposal with the configuration in the trial's folder."""
        file = self.folder.trial(number) / TRIAL_FILE
        try:
            content: Any = read_json(file, MAX_SPEC_BYTES)
            return events.Proposed(trial=number, config=content["config"], why="its line was lost")
        except (KeyError, TypeError, ValueError):
            return None
