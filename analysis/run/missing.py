"""Events of missing journal lines, reconstructed from what follows and from trials' folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.run.chain import Line
from analysis.run.events import Ended, Event, Opened, Proposed, Started, from_record, to_record
from analysis.run.fold import Run
from analysis.run.folder import TRIAL_FILE, RunFolder
from foundation.files import FileError, parse_json, read_bytes
from search_spaces import load_space

MAX_SPEC_BYTES = 16 << 20


@dataclass(frozen=True)
class MissingEvents:
    """Reconstructs events whose lines are missing from all intact ``lines``."""

    folder: RunFolder
    lines: Sequence[Line]

    def before(self, run: Run, t: float, event: Event) -> Iterator[tuple[float, Event, str]]:
        """Yield the missing events that ``event`` presupposes: time, event, description.

        ``run`` is the state before it: the caller applies each yielded event to it at once.
        """
        if isinstance(event, Opened):
            return
        if (not run.opened_t or run.closed is not None) and (opened := self._opened()):
            yield t, opened, "the beginning of its session, of which the seed is not known"
        if not isinstance(event, (Started, Ended)):
            return
        number, attempt = event.trial, event.attempt
        if number not in run.trials and (proposed := self._proposed(number)):
            yield t, proposed, f"the proposal of trial {number}, which its folder knows"
        trial = run.trials.get(number)
        if trial and isinstance(event, Ended) and attempt >= trial.next_attempt:
            began = max(trial.proposed_t, t - max(0.0, event.elapsed_s))
            started = Started(
                trial=number, attempt=attempt, name="", nodes=event.nodes, repeat=trial.ended
            )
            yield began, started, f"the start of attempt {attempt} at trial {number}"

    def _opened(self) -> Opened | None:
        """The opening of another session, or one made from the run's space."""
        for line in self.lines:
            if line.record.get("event") == "opened":
                event = _valid(line.record)
                if isinstance(event, Opened):
                    return event
        try:
            space = load_space(self.folder.space_file)
        except FileError:
            return None
        return Opened.of(space, launcher="")

    def _proposed(self, number: int) -> Proposed | None:
        """The proposal with the configuration in the trial's folder."""
        file = self.folder.trial(number) / TRIAL_FILE
        try:
            content: Any = parse_json(read_bytes(file, MAX_SPEC_BYTES), str(file))
            proposed = Proposed(trial=number, config=content["config"], why="its line was lost")
        except (FileError, KeyError, TypeError):
            return None
        found = _valid(to_record(proposed, 0.0))
        return found if isinstance(found, Proposed) else None


def _valid(record: Any) -> Event | None:
    try:
        return from_record(record)
    except ValueError:
        return None
