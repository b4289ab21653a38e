"""Damage of every kind to the journal of a real search: found and named, and repaired without loss.

The search is simulated: the driver, its journal and the trials' folders are as they always are.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from analysis.run.fold import Run, read_run
from analysis.run.folder import RunFolder
from analysis.run.lines import FIRST, RunError, sealed
from analysis.run.repair import repair_run
from search_spaces import load_space
from workflows.search.session import Search
from workflows.simulation.workload import simulated_launcher

SPACE = """\
version: 1
name: paper
model: gpt_22b
cluster: frontier
trainer: {builtin: {data: no/such/tokens, precision: bf16}}
parameters:
  num_nodes: [2, 4, 8]
  tp: [1, 2, 4]
  pp: [1, 2, 4, 8]
  mbs: [1, 2, 4]
objective: {maximize: tflops_per_gpu}
finalists: {max_repeats: 2}
"""
TROUBLED = "nodes=24,crash=0.1,launch_failure=0.2,node_failures_per_day=5"


@dataclass(frozen=True)
class Original:
    """A run of two sessions, whose journal is damaged again and again."""

    folder: Path
    data: bytes
    run: Run

    @property
    def lines(self) -> list[bytes]:
        return self.data.splitlines(keepends=True)

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    place = tmp_path_factory.mktemp("damage")
    (place / "paper.yaml").write_text(SPACE)
    space, path = load_space(place / "paper.yaml"), place / "run"
    for trials in (4, 8):
        asked = replace(space, budget=space.budget.model_copy(update={"trials": trials}))
        launcher = simulated_launcher(asked, TROUBLED)
        Search(asked, RunFolder(path), launcher, policy="random").run()
    run = read_run(path)
    kinds = Counter(a.kind for t in run.trials.values() for a in t.attempts)
    assert len(run.opened_t) == 2 and kinds["ok"] >= 4 and kinds["launch_failure"]
    assert any(a.repeat for t in run.trials.values() for a in t.attempts)
    return Original(path, (path / "journal.jsonl").read_bytes(), run)


def check(original: Original, damaged: bytes) -> str:
    """What becomes of a damaged journal: it is ``read`` as it was, ``cut``, or ``refused``."""
    original.journal.write_bytes(damaged)
    try:
        run = read_run(original.folder)
    except RunError as error:
        check_refusal(original, damaged, str(error))
        return "refused"
    if damaged == original.data:
        assert run == original.run
        return "read"
    kept = [line for line in damaged.splitlines(keepends=True) if line.endswith(b"\n")]
    assert kept == original.lines[: len(kept)]
    return "cut"


def check_refusal(original: Original, damaged: bytes, message: str) -> None:
    lines = damaged.split(b"\n")
    first = next(
        i for i, (a, b) in enumerate(zip(lines, original.data.split(b"\n"), strict=False)) if a != b
    )
    named = re.search(r"journal\.jsonl:(\d+): .*; `meshtune repair \S+` keeps what", message)
    assert named and int(named[1]) == first + 1, message
    assert message.count("\n") == 0 and len(message) < 1000
    done = repair_run(original.folder)
    assert done.notes and done.backup and done.backup.read_bytes() == damaged
    done.backup.unlink()
    run = read_run(original.folder)
    assert run == done.run
    assert run.goals == original.run.goals
    told = Counter(
        event["trial"]
        for event in map(json.loads, original.journal.read_bytes().splitlines())
        if event["event"] == "ended" and event["final"]
    )
    assert all(count == 1 for count in told.values())
    present = set(damaged.splitlines(keepends=True))
    for line in original.lines:
        event = json.loads(line)
        if event["event"] == "ended" and event["final"] and line in present:
            was, now = original.run.trials[event["trial"]], run.trials[event["trial"]]
            assert (now.kind, now.config) == (was.kind, was.config)
            assert now.attempts[0].objective == was.attempts[0].objective
    again = repair_run(original.folder)
    assert again.notes == [] and again.backup is None


def test_a_journal_without_damage_is_read_as_it_is(original: Original) -> None:
    assert check(original, original.data) == "read"
    assert repair_run(original.folder).notes == []


def cuts(data: bytes) -> Iterator[bytes]:
    return (data[:size] for size in range(len(data)))


def flipped_bits(data: bytes) -> Iterator[bytes]:
    """One bit of every byte, all eight of the newlines and of what is around them."""
    chance = random.Random(1)
    for at, byte in enumerate(data):
        near = b"\n" in data[max(0, at - 24) : at + 4]
        for bit in range(8) if near else [chance.randrange(8)]:
            yield data[:at] + bytes([byte ^ (1 << bit)]) + data[at + 1 :]


def changed_lines(data: bytes) -> Iterator[bytes]:
    """Each line removed, repeated, exchanged with the next, overwritten, glued to the next."""
    lines = data.splitlines(keepends=True)
    for at, line in enumerate(lines):
        before, after = b"".join(lines[:at]), b"".join(lines[at + 1 :])
        if after:
            yield before + after
            yield before + lines[at + 1] + line + b"".join(lines[at + 2 :])
            yield before + line[: len(line) // 2] + after  # not cut by who wrote on
            yield before + line[:-1] + after
        yield before + line + line + after
        yield before + bytes(len(line)) + after
        yield before + bytes(4096) + line + after
        yield before + line[:-1] + b"\r\n" + after
        yield before + b"\n" + line + after


DAMAGES = {"cut": cuts, "flipped": flipped_bits, "lines": changed_lines}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_found_at_its_line_and_repaired(original: Original, kind: str) -> None:
    campaign(original, DAMAGES[kind](original.data), share=0.004 if kind != "lines" else 0.1)


@pytest.mark.heavy
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", DAMAGES)
def test_all_damage_is_found_at_its_line_and_repaired(original: Original, kind: str) -> None:
    campaign(original, DAMAGES[kind](original.data), share=1)


def campaign(original: Original, journals: Iterator[bytes], share: float) -> None:
    chance = random.Random(2)
    outcomes = Counter(check(original, d) for d in journals if chance.random() < share)
    assert outcomes["read"] == 0 and outcomes.total() > 10


def before_the_last_session_s(journal: Path) -> float:
    run = read_run(journal.parent)
    return round(run.search_s(run.opened_t[-1]), 3)


def test_the_beginning_of_a_session_may_be_damaged(original: Original, tmp_path: Path) -> None:
    """Days between a killed driver and the next one are no time of searching."""
    events = [{**json.loads(line)} for line in original.lines]
    second = [i for i, event in enumerate(events) if event["event"] == "opened"][1]
    data, last = b"", FIRST
    for at, event in enumerate(events):
        event["t"] += 3 * 86400 * (at >= second)
        if event["event"] != "closed" or at > second:
            record = {key: value for key, value in event.items() if key not in ("after", "crc")}
            line, last = sealed(record, last)
            data += line
    (tmp_path / "run").mkdir()
    journal = tmp_path / "run" / "journal.jsonl"
    journal.write_bytes(data)
    searched = [before_the_last_session_s(journal)]
    start = data.index(b'"event": "opened"', 300)
    line_start, line_end = data.rindex(b"\n", 0, start) + 1, data.index(b"\n", start)
    for at in range(line_start, line_end, 7):
        journal.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        done = repair_run(journal.parent)
        assert any("the beginning of its session" in text for _, text in done.notes)
        searched.append(before_the_last_session_s(journal))
    assert max(searched) < 86400 and len(set(searched)) == 1
