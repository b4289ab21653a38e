"""Output of a running search: a live panel on a terminal, plain lines elsewhere.

Standard output may lose its reader: the search continues without it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import textwrap
import time
from collections import Counter
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from analysis import Closed, Ended, Event, Opened, Run, Started, Trial, read_run, verdict_lines
from foundation.messages import printable
from foundation.quantities import clock_text, config_text, counted, number
from workflows.search.budget import Budget, node_hours, wall_time_s
from workflows.search.panel import Panel, colour, node_ranges, of_limit

if TYPE_CHECKING:
    from workflows.search.driver import Driver

REFRESHED_PER_S = 2
SHOWN_MESSAGE = 100  # characters; the journal and the report have all
# Errors that may pass: of a full disk, of a slow reader.
_FOR_A_WHILE = (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN)


def summary(run: Run, budget: Budget, now: float, alive: bool = True) -> list[tuple[str, str]]:
    """The state of a run as (label, text) rows, for ``meshtune status``.

    It is ``alive`` while a driver runs it; ``now`` is in seconds since the epoch.
    """
    ended = [t for t in run.trials.values() if t.ended]
    failed = Counter(t.kind for t in ended if not t.ok)
    kinds = ", ".join(f"{n} {kind}" for kind, n in failed.most_common())
    running = sum(t.running is not None for t in run.trials.values())
    done = of_limit(len(ended), budget.trials, str)
    what = "running" if alive or not running else "interrupted"
    crashed = [t for t in run.trials.values() if t.crashes]
    what += f", {len(crashed)} crashed, will run again" if crashed else ""
    rows = [
        ("trials", f"{done} done, {running} {what}"),
        ("failed", f"{sum(failed.values())}" + (f" ({kinds})" if kinds else "")),
    ]
    if best := run.best:
        rows.append(("best", f"{run.objectives_text(best)}, trial {best.number}"))
        rows.append(("", config_text(best.config)))
    else:
        rows.append(("best", "none yet" if any(t.violated for t in ended) else "no success yet"))
        if why := [f"trial {t.number}: {t.message}" for t in [*ended, *crashed] if t.message]:
            rows.append(("because", why[-1]))
    rows += run.front_lines()
    rows += verdict_lines(run)
    rows.append(("time", of_limit(wall_time_s(run, now), budget.wall_time_s, clock_text)))
    rows.append(("node-hours", of_limit(node_hours(run, now), budget.node_hours, number)))
    if run.folder.probes.started:
        probes = read_run(run.folder.probes.path)
        ran = f"{sum(t.ok for t in probes.trials.values())} of {len(probes.trials)} ran"
        rows.append(("probes", f"{ran}, {number(probes.node_hours)} node-hours"))
    return rows


class Progress:
    """Listens to a driver; use as a context manager around its run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        live = Live(console=console, refresh_per_second=REFRESHED_PER_S)
        self._live = live if console.is_terminal else None
        self._panel = Panel(console)
        self._due_s = 0.0  # time of the next drawing, which reads the whole run
        self._best: Trial | None = None

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, event: Event | str | None, driver: Driver) -> None:
        if isinstance(event, Ended) or (isinstance(event, Started) and not self._live):
            self._line(event, driver.state)
        elif isinstance(event, str):
            self.say(event)
        if self._live:
            if time.monotonic() >= self._due_s or isinstance(event, Opened | Closed):
                self._draw(self._live, driver)
                self._due_s = time.monotonic() + 1 / REFRESHED_PER_S
        elif isinstance(event, Opened):
            self.say(f"searching {driver.space.name} on {counted(driver.pool.size, 'node')}")

    def _draw(self, live: Live, driver: Driver) -> None:
        """Draw the panel; if that fails, the search continues with plain lines."""
        try:
            live.update(self._panel.draw(driver))
        except Exception as error:  # of the cost model, say
            live.stop()
            self._live = None
            self.say(f"the live view failed: {str(error) or type(error).__name__}")

    def say(self, text: str, style: str = "") -> None:
        """Print one line above the panel, made printable: trainers may print anything."""
        self._console.print(Text(printable(text), style=style), soft_wrap=True)

    def _line(self, event: Started | Ended, run: Run) -> None:
        trial = run.trials[event.trial]
        attempt = trial.attempts[-1]
        what = f"trial {trial.number:4d}"
        if len(trial.attempts) > 1:
            what += f" (attempt {attempt.number})"
        if isinstance(event, Started):
            self.say(
                f"{what} started  {config_text(trial.config)}  on {node_ranges(attempt.nodes)}"
            )
            return
        spent, style = clock_text(attempt.elapsed_s), colour(attempt.kind)
        repeat = run.attempt_text(trial, attempt)
        if repeat or attempt.kind == "ok":
            words = repeat or f"ok       {run.objectives_text(trial)}"
            note = "  <- best" if self._is_best(run, trial) else ""
            if not note and not repeat and trial in run.front():
                note = "  <- front"
        else:
            note = "" if trial.ended else "  (will run again)"
            why = textwrap.shorten(attempt.message, SHOWN_MESSAGE, placeholder=" ...")
            words = f"{attempt.kind:8s} {why}"
        self.say(f"{what} {words}  {spent}{note}", style)

    def _is_best(self, run: Run, trial: Trial) -> bool:
        """Whether a trial that has just ended is the best; reads the run only if it may be."""
        best = self._best
        if best is None or best is trial or not best.ok or run.merits(trial) >= run.merits(best):
            self._best = run.best
        return self._best is trial


class Screen:
    """A text file whose write errors are not raised.

    After a temporary one (a full disk) the text is written later; once the reader is gone
    (``| head -1``), output is discarded, and standard error says so.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        try:
            self._file.write(text)
        except OSError as error:
            self._note(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError as error:
            self._note(error)

    def finish(self) -> None:
        """Write or discard buffered text: the interpreter's own last flush must not fail."""
        try:
            self._file.flush()
        except OSError:
            self._discard()

    def _note(self, error: OSError) -> None:
        if error.errno in _FOR_A_WHILE:
            return
        self._discard()
        with contextlib.suppress(OSError):
            print(f"meshtune: {error.strerror}: continuing without output", file=sys.stderr)

    def _discard(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        with contextlib.suppress(OSError):  # it has no file descriptor
            os.dup2(nowhere, self._file.fileno())
        os.close(nowhere)
