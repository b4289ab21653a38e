"""The live view of a search on a terminal: results, budget and running trials."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from analysis import Run, verdict_lines
from foundation import quantities
from foundation.messages import printable
from foundation.quantities import clock_text, config_text, duration
from slurm import BLAMELESS
from workflows.search.budget import Budget, NodeHours, node_hours, wall_time_s

if TYPE_CHECKING:
    from workflows.search.attempts import Running
    from workflows.search.driver import Driver

N = TypeVar("N", int, float)

FEWEST_ROWS = 3  # of running trials, also on a low terminal
SHOWN_FRONT = 3
LABEL = 10  # characters
OK, BLAME, NO_BLAME, RUNS = "green", "red", "yellow", "cyan"  # colours by outcome


def colour(kind: str | None) -> str:
    """An outcome's colour: green, red if the configuration is to blame, yellow if it is not."""
    if kind in (None, "ok"):
        return OK if kind else RUNS
    return NO_BLAME if kind in BLAMELESS else BLAME


def node_ranges(names: Iterable[str]) -> str:
    """``n[001-003,007],gpu4``: node names as Slurm writes them, in their order."""
    numbered = [re.fullmatch(r"(.*?)(\d*)", name) for name in names]
    parts = [(m[1], m[2]) for m in numbered if m]
    shown = []
    for (stem, width), group in groupby(parts, key=lambda part: (part[0], len(part[1]))):
        numbers = [number for _, number in group]
        if width == 0 or len(numbers) == 1:
            shown += [stem + number for number in numbers]
            continue
        runs = groupby(enumerate(numbers), key=lambda at: int(at[1]) - at[0])
        spans = [[number for _, number in run] for _, run in runs]
        spelled = [span[0] if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans]
        shown.append(f"{stem}[{','.join(spelled)}]")
    return ",".join(shown)


class Panel:
    """Draws a driver's state to fit a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen = 0  # trials whose parameters are noted
        self._first: Mapping[str, Any] = {}
        self._varied: set[str] = set()
        self._hours: NodeHours | None = None
        self._expected: dict[tuple[int, int], str] = {}  # times by trial and attempt

    def draw(self, driver: Driver) -> RenderableType:
        run, now = driver.state, driver.journal.clock()
        self._note_parameters(run)
        head = Table.grid(padding=(0, 1))
        head.add_column(width=LABEL, no_wrap=True)
        head.add_column(overflow="fold")
        for label, text in self._facts(driver, run, now):
            head.add_row(Text(label, style="bold"), text)
        used = len(self._console.render_lines(head, pad=False))
        room = max(FEWEST_ROWS, self._console.height - used - 3)
        return Group(head, self._running(driver, run, now, room))

    def _facts(self, driver: Driver, run: Run, now: float) -> list[tuple[str, Text]]:
        simulated = " (simulated)" if driver.launcher.simulated else ""
        goals = ", ".join(
            f"{'maximize' if o.maximize else 'minimize'} {o.key}" for o in driver.space.objectives
        )
        rows = [("space", Text(f"{driver.space.name}{simulated}: {goals}"))]
        if best := run.best:
            times = len(best.measurements)
            words = f"{run.objectives_text(best)}, trial {best.number}"
            words += f", the median of {times}" if times > 1 else ""
            rows.append(("best", Text(words, style=f"bold {OK}")))
            rows.append(("", Text(self._config(best.config))))
        else:
            none = run.no_best if any(t.violated for t in run.ended) else "no success yet"
            rows.append(("best", Text(none)))
        verdict = [(label, Text(printable(text))) for label, text in verdict_lines(run)]
        rows += [line for line in verdict if line[0] == "headroom"]
        constant = {n: v for n, v in self._first.items() if n not in self._varied}
        if self._varied and constant:
            rows.append(("constant", Text(config_text(constant), style="dim")))
        rows += [(label, Text(printable(t))) for label, t in run.front_lines()[: SHOWN_FRONT + 1]]
        rows.append(("trials", _counts(driver, run)))
        rows.append(("spent", Text(_spent(driver, run, now))))
        if finals := [str(n) for n in sorted(driver.running) if run.trials[n].ended]:
            words = f"measured again to settle the winner: trial {', '.join(finals)}"
            rows.append(("finalists", Text(words, style="bold")))
        return rows + [line for line in verdict if line[0] in ("winner", "runner-up")]

    def _running(self, driver: Driver, run: Run, now: float, room: int) -> RenderableType:
        if not driver.running:
            doing = "ending" if driver.stopping or run.closed else "choosing the next trial"
            return Text(f"{doing} ...", style="dim")
        table = Table.grid(padding=(0, 2), expand=True)
        for ratio, right in ((0, True), (0, True), (0, True), (0, False), (1, False)):
            table.add_column(
                no_wrap=True, overflow="ellipsis", ratio=ratio or None,
                justify="right" if right else "left", max_width=None if ratio else 24,
            )  # fmt: skip
        table.add_row(*(Text(h, style="dim") for h in ("trial", "time", "of", "nodes", "")))
        shown = sorted(driver.running.values(), key=lambda r: r.trial)
        expectations = self._expectations(driver, run, shown[:room])
        for running, expected in zip(shown, expectations, strict=False):
            trial = run.trials[running.trial]
            table.add_row(
                Text(str(running.trial), style=RUNS),
                Text(clock_text(now - trial.attempts[-1].started_t)),
                Text(expected),
                Text(printable(node_ranges(running.lease.nodes))),
                Text(printable(self._config(trial.config))),
            )
        if len(shown) <= room:
            return table
        return Group(table, Text(f"and {len(shown) - room} more", style="dim"))

    def _expectations(self, driver: Driver, run: Run, shown: Sequence[Running]) -> list[str]:
        """Expected times of attempts, as of their starts."""
        keys = [(running.trial, running.attempt) for running in shown]
        if new := [key for key in keys if key not in self._expected]:
            self._hours = self._hours or NodeHours(driver.space, None)
            found = self._hours.expected_texts(run, [run.trials[trial].config for trial, _ in new])
            self._expected.update(zip(new, found, strict=True))
        return [self._expected[key] for key in keys]

    def _note_parameters(self, run: Run) -> None:
        """Note which parameters differ between trials; each trial is read once."""
        numbers = list(run.trials)[self._seen :]
        for number in numbers:
            config = run.trials[number].config
            self._first = self._first or config
            names = {*config, *self._first}
            self._varied |= {n for n in names if config.get(n) != self._first.get(n)}
        self._seen += len(numbers)

    def _config(self, config: Mapping[str, Any]) -> str:
        varied = {name: config.get(name) for name in self._first if name in self._varied}
        return config_text(varied if self._varied else config)


def _counts(driver: Driver, run: Run) -> Text:
    ended = [t for t in run.trials.values() if t.ended]
    done = of_limit(len(ended), driver.budget.trials, str)
    text = Text(f"{done} ended, {len(driver.running)} running")
    for kind, count in Counter(t.kind for t in ended).most_common():
        text.append(", ")
        text.append(f"{count} {kind}", style=colour(kind))
    return text


def _spent(driver: Driver, run: Run, now: float) -> str:
    budget = driver.budget
    time = of_limit(wall_time_s(run, now), budget.wall_time_s, clock_text)
    hours = of_limit(node_hours(run, now), budget.node_hours, quantities.number)
    busy = sum(len(r.lease.nodes) for r in driver.running.values())
    words = f"{time}, {hours} node-hours; {busy} of {driver.pool.size} nodes busy"
    rest_s = remaining_s(run, budget, now)
    return words + (f"; ends in about {duration(rest_s)}" if rest_s else "")


def of_limit(used: N, limit: N | None, text: Callable[[N], str]) -> str:
    """``3 of 20``, each by ``text``; ``3`` without a limit."""
    return text(used) + (f" of {text(limit)}" if limit is not None else "")


def remaining_s(run: Run, budget: Budget, now: float) -> float | None:
    """Seconds until the budget's first limit at the pace so far; None if unknown."""
    time_s, hours = wall_time_s(run, now), node_hours(run, now)
    ended = sum(t.ended for t in run.trials.values())
    rests = []
    if budget.wall_time_s:
        rests.append(budget.wall_time_s - time_s)
    if budget.node_hours and hours > 0:
        rests.append((budget.node_hours - hours) * time_s / hours)
    if budget.trials and ended:
        rests.append((budget.trials - ended) * time_s / ended)
    return max(0.0, min(rests)) if rests else None
