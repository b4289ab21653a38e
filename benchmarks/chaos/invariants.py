"""Invariants, which hold whatever was injected. Each check yields a sentence per violation."""

from __future__ import annotations

import contextlib
import csv
import json
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import Run, read_run
from benchmarks.chaos.machines import command_line, marked, until
from benchmarks.chaos.rank import speed
from benchmarks.chaos.trainers import CASES
from slurm import BLAMELESS, Kind

if TYPE_CHECKING:
    from benchmarks.chaos.world import World

MEMORY_BYTES = 700 << 20  # of a driver: 220 MiB, and what torch, SHAP and a report take
LINE_BYTES = 1 << 20  # of the journal
LEFT_S = 3.0  # a process that has been killed may be seen for a moment
KILLED_S = 30.0  # for the processes of a driver that was killed
RANKS_PER_NODE = 2
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_TRACEBACK = re.compile(r"(?m)^Traceback \(most recent call last\):\n(?:[ \t].*\n)*(?P<error>.*)")
_FAILED = ("oom", "crash", "timeout", "diverged", "invalid")  # by what the configuration is
Check = Callable[["World", Run, list[dict[str, Any]]], Iterator[str]]


def finished(journal: Path) -> dict[int, tuple[str, float | None]]:
    """Kind and figure of each trial that has ended for good, as whole lines of a journal say."""
    return finished_in(_whole_lines(journal))


def finished_in(lines: list[bytes]) -> dict[int, tuple[str, float | None]]:
    """The same of lines."""
    found = {}
    for event in map(json.loads, lines):
        if event.get("event") == "ended" and event.get("final"):
            found[int(event["trial"])] = (str(event["kind"]), event.get("objective"))
    return found


def events_of(journal: Path) -> list[dict[str, Any]]:
    """The events of a journal's whole lines; empty before there is one."""
    return [json.loads(line) for line in _whole_lines(journal)]


def _whole_lines(journal: Path) -> list[bytes]:
    return journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []


# ---- after each session ----


def exit_code(world: World, code: int) -> Iterator[str]:
    if world.is_expected(code):
        return
    # Done, and no trial has succeeded, nor held when it was measured again: the documented 1.
    events, succeeded = events_of(world.journal), set()
    for event in events:
        if event["event"] == "ended" and event["kind"] == "ok":
            succeeded |= {event["trial"]} if event["final"] else set()
        elif event["event"] == "ended" and event["kind"] in _FAILED:
            succeeded -= {event["trial"]}
    if code == 1 and not succeeded and events and events[-1]["event"] == "closed":
        return
    tail = "\n    ".join(world.said().splitlines()[-12:])
    yield f"session {world.sessions} ended with {code}:\n    {tail}"


def nothing_runs(world: World) -> Iterator[str]:
    """No process is left of a driver that has exited, however it was ended."""
    if world.is_local or not world.abrupt:
        deadline_s = KILLED_S if world.abrupt else LEFT_S
        if not until(lambda: not marked(world.marker), deadline_s):
            left = [f"{pid} {command_line(pid)[:100]}" for pid in marked(world.marker)]
            yield f"left running after session {world.sessions}: {left}"
    names = {event["name"] for event in events_of(world.journal) if event.get("event") == "started"}
    listed = not (world.abrupt or world.lists_for_ever)
    if listed and (steps := world.machine.steps_left(names)):
        yield f"steps left after session {world.sessions}: {steps}"


def nothing_lost(world: World) -> Iterator[str]:
    """Trials that had ended for good are still there, unchanged, and once."""
    now = finished(world.journal)
    for number, (kind, figure) in world.finished.items():
        if number not in now:
            yield f"trial {number} ({kind}) was finished and is lost"
        elif now[number] != (kind, figure):
            yield f"trial {number} was {kind} {figure} and is {now[number]}"
    ends = [e for e in events_of(world.journal) if e.get("event") == "ended" and e.get("final")]
    for number, count in Counter(e["trial"] for e in ends).items():
        if count > 1:
            yield f"trial {number} has ended {count} times"
    attempts = [e for e in events_of(world.journal) if e.get("event") == "ended"]
    for which, count in Counter((e["trial"], e["attempt"]) for e in attempts).items():
        if count > 1:
            yield f"attempt {which[1]} of trial {which[0]} has ended {count} times"


# ---- at the end of a round ----


def all_done(world: World, run: Run, events: list[dict[str, Any]]) -> Iterator[str]:
    """All trials were run, and no configuration twice."""
    counted = [t for t in run.trials.values() if t.kind and Kind(t.kind).observed]
    if len(counted) != world.plan.trials:
        yield f"{len(counted)} of {world.plan.trials} trials: the search ended with {run.closed!r}"
    for number, trial in run.trials.items():
        if not trial.ended:
            yield f"trial {number} has not ended"
    for config, count in Counter(json.dumps(t.config) for t in run.trials.values()).items():
        if count > 1:
            yield f"{count} trials of {config}"


def nobody_blamed(world: World, run: Run, events: list[dict[str, Any]]) -> Iterator[str]:
    """A trial ends as its case says, and its attempts for no other reason than that."""
    for number, trial in run.trials.items():
        case = CASES[trial.config["case"]]
        kinds = case.kinds | case.killed if world.disturbed else case.kinds
        if trial.kind not in kinds:
            yield (
                f"trial {number} ({trial.config['case']}) ended as {trial.kind}, "
                f"not {' or '.join(sorted(kinds))}: {trial.message}"
            )
        for attempt in trial.attempts:
            if attempt.kind in BLAMELESS and not world.disturbed and attempt.kind not in kinds:
                yield f"nobody disturbed attempt {attempt.name} ({attempt.kind}): {attempt.message}"


def right_figures(world: World, run: Run, events: list[dict[str, Any]]) -> Iterator[str]:
    for number, trial in run.trials.items():
        world_size = RANKS_PER_NODE * int(trial.config["num_nodes"])
        expected = speed(int(trial.config["x"]), world_size)
        if trial.ok and trial.objective != expected:
            yield f"trial {number} has the figure {trial.objective}, not {expected}"


def one_trial_on_a_node(world: World, run: Run, events: list[dict[str, Any]]) -> Iterator[str]:
    met = world.root / "evidence" / "met"
    if met.exists():
        yield from dict.fromkeys(met.read_text().splitlines())


def little_memory(world: World, run: Run, events: list[dict[str, Any]]) -> Iterator[str]:
    if world.peak_bytes > MEMORY_BYTES:
        yield f"the driver took {world.peak_bytes >> 20} MiB"
    longest = max(map(len, world.journal.read_bytes().split(b"\n")))
    if longest > LINE_BYTES:
        yield f"a line of the journal has {longest} bytes"


def no_secret(world: World, run: Run, events: list[dict[str, Any]]) -> Iterator[str]:
    """Values of ``trainer.env`` appear on no screen and in no report."""
    shown = [world.log, world.journal, world.run_dir / "results.csv"]
    shown += sorted((world.run_dir / "report").glob("*.html"))  # best.yaml starts a trainer
    for path in shown:
        if path.is_file() and world.secret.encode() in path.read_bytes():
            yield f"{path.name} shows the secret of trainer.env"


def private(world: World, run: Run, events: list[dict[str, Any]]) -> Iterator[str]:
    """Files with the secret are readable for their owner only."""
    if (mode := world.run_dir.stat().st_mode) & 0o077:
        yield f"the run's folder has the mode {mode & 0o777:o}"
    for path in sorted(world.run_dir.rglob("*")):
        with contextlib.suppress(OSError):  # what a trainer has put there
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_size <= LINE_BYTES:
                holds = world.secret.encode() in path.read_bytes()
                if holds and status.st_mode & 0o077:
                    yield f"{path.relative_to(world.root)} can be read by others"


def clean_screen(world: World, run: Run, events: list[dict[str, Any]]) -> Iterator[str]:
    """Output of a trial cannot steer the terminal."""
    for line in world.said().splitlines():
        if found := _UNSEEN.search(line):
            yield f"the screen was sent {found.group()!r} in {line!r}"
            return


def no_traceback(world: World, run: Run, events: list[dict[str, Any]]) -> Iterator[str]:
    """Nothing that happens to trials is an error of the driver's."""
    for found in _TRACEBACK.finditer(world.said()):
        # What comes before any of our code runs is the interpreter's to tell.
        early = found["error"].startswith(("KeyboardInterrupt", "OSError: [Errno 24]"))
        if not early or ", in main\n" in found.group():
            yield f"the driver had an error: {found.group()[:2000]}"


def results_agree(world: World, run: Run, events: list[dict[str, Any]]) -> Iterator[str]:
    """``results.csv`` has each trial once that has ended, or crashed and runs again."""
    path = world.run_dir / "results.csv"
    if not path.is_file():
        yield "there is no results.csv"
        return
    with path.open(newline="") as file:
        told = Counter(int(row["job_id"]) for row in csv.DictReader(file))
    expected = [trial.number for trial in run.reported]
    if told != dict.fromkeys(expected, 1):
        yield f"results.csv has the trials {sorted(told.elements())}, the journal {expected}"


CHECKS: tuple[Check, ...] = (
    all_done, nobody_blamed, right_figures, one_trial_on_a_node, little_memory, no_secret, private,
    clean_screen, no_traceback, results_agree,
)  # fmt: skip


def check_session(world: World, code: int) -> Iterator[str]:
    """Violations that a session of the search has left."""
    yield from exit_code(world, code)
    yield from nothing_runs(world)
    yield from nothing_lost(world)
    world.finished = finished(world.journal)


def check_round(world: World) -> Iterator[str]:
    """Violations of a round whose search is done."""
    try:
        run, events = read_run(world.run_dir), events_of(world.journal)
    except Exception as error:  # whatever a reader cannot take
        yield f"the journal cannot be read: {type(error).__name__}: {error}"
        return
    for check in CHECKS:
        yield from check(world, run, events)
