"""Reading what a trial left takes time in proportion to it, whatever it is."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm.logs import apart, patterns
from slurm.logs.patterns import LogFormat, Pattern
from slurm.logs.text import MAX_LINE, cut_lines, objects_after
from slurm.mpiexec.texts import MPIEXEC_TEXTS, REFUSES_ROOT
from slurm.outcome import classify as classification
from slurm.outcome.classify import Outcome, classify
from slurm.outcome.evidence import gather
from slurm.outcome.kinds import Kind
from slurm.outcome.watch import Termination, Watched
from slurm.srun.containers import Runtime
from slurm.srun.texts import SRUN_TEXTS
from slurm.trial import Lease, TrialSpec

LENGTH = 1 << 13  # characters; four times as much takes four times as long, or 16 times
FLOOR_S = 0.01  # of CPU time; what is quicker is not measured well


def all_patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    for kind in Kind:
        if kind.row.text:
            yield str(kind), kind.row.text.pattern
    for launcher, texts in (("srun", SRUN_TEXTS), ("mpiexec", MPIEXEC_TEXTS)):
        for field in dataclasses.fields(texts):
            if field.name != "container":
                yield f"{launcher}-{field.name}", getattr(texts, field.name)
    for name in Runtime.shipped():
        for i, (pattern, _) in enumerate(Runtime.load(name).texts(None, started=False)):
            yield f"{name}-{i}", pattern
    yield "refuses-root", REFUSES_ROOT
    yield "exception", classification._EXCEPTION
    for name in ("_ANSI", "_LOSS"):
        yield name, getattr(patterns, name)
    yield "pauses", re.compile(patterns.PAUSES)


def hostile_texts(pattern: str) -> Iterator[str]:
    """Repetitions of what a pattern begins with, in all ways to separate them."""
    words = [" ".join(w.split()) for w in re.findall(r"[A-Za-z][\w':. ]{2,}|-{2,}", pattern)]
    words = list(dict.fromkeys(re.sub(r"(?<=\w)\.$", "", w) for w in words))
    pieces = [
        *words,
        *(w[: len(w) // 2] for w in words),
        "a",
        "a.",
        ".",
        "1",
        " ",
        "-",
        "[",
        "\x1b[",
    ]
    starts = ["", "srun: error: ", "slurmstepd-n1: ", "meshtune: ", "[mpiexec@n1] ", "ssh: "]
    for piece, gap in itertools.product(pieces, ("", " ", ": ", "\n")):
        yield piece + gap
    for start, piece in itertools.product(starts[1:], pieces):
        yield start + "\0" + piece + " "  # the start once, then the piece again and again
    for first, second in itertools.pairwise(words):
        yield f"{first} {second} "
        yield f"{first} {second}\n"


def grown(text: str, length: int) -> str:
    start, _, piece = text.rpartition("\0")
    return start + piece * (length // max(1, len(piece)))


def cpu_s(call: Callable[[], object], tries: int = 2) -> float:
    """Of this thread: what else runs on the machine does not count, but where it is a virtual one,
    of which others take their share: so the least of several."""
    best = float("inf")
    for _ in range(tries):
        begin = time.thread_time()
        call()
        best = min(best, time.thread_time() - begin)
        if best < FLOOR_S:
            break
    return best


@pytest.mark.parametrize("pattern", [pytest.param(p, id=name) for name, p in all_patterns()])
def test_no_pattern_takes_more_than_linear_time(pattern: re.Pattern[str]) -> None:
    for text in hostile_texts(pattern.pattern):
        small, large = grown(text, LENGTH), grown(text, 4 * LENGTH)
        for tries in (2, 10):
            large_s = cpu_s(lambda large=large: list(pattern.finditer(large)), tries)  # type: ignore[misc]
            small_s = cpu_s(lambda small=small: list(pattern.finditer(small)), tries)  # type: ignore[misc]
            if large_s < max(FLOOR_S, 9 * small_s):
                break
        else:
            pytest.fail(f"{text!r}: {small_s} s, and {large_s} s for four times as much")


def outcome_of(folder: Path, log: LogFormat | None = None) -> Outcome:
    spec = TrialSpec("t-1", folder, ("x",), 1, 1, 60.0, log=log or LogFormat())
    lease, watched = Lease("t-1", ("n1",)), Watched(Termination.EXITED, 1.0)
    return classify(gather(spec, lease, watched, 1, texts=SRUN_TEXTS))


# What a progress bar writes, and the beginnings of what means something.
@pytest.mark.parametrize(
    "piece", ["step 7 [==>  ] error 0 world_size 4\r", "MESHTUNE_RESULT {", "MESHTUNE_STEP { "]
)
def test_an_outcome_takes_linear_time_whatever_is_in_the_logs(tmp_path: Path, piece: str) -> None:
    def time_s(length: int, tries: int) -> float:
        for name in ("stdout.log", "stderr.log"):
            (tmp_path / name).write_text(piece * (length // len(piece)))
        return cpu_s(lambda: outcome_of(tmp_path), tries)

    for tries in (2, 10):
        small_s, large_s = time_s(1 << 16, tries), time_s(1 << 18, tries)
        if large_s < max(9 * small_s, 3 * FLOOR_S):
            break
    else:
        pytest.fail(f"{small_s} s, and {large_s} s for four times as much")
    assert outcome_of(tmp_path).kind is Kind.CRASH


def test_a_progress_bar_is_as_many_lines_as_steps(tmp_path: Path) -> None:
    """What ends a trial is found behind it, and the journal gets a line of it, not all."""
    bar = "".join(f"step {i}/8000 error 0 world_size 4\r" for i in range(8000))
    said = "RuntimeError: CUDA error: out of memory"
    (tmp_path / "stderr.log").write_text(f"{bar}\n{said}\n")
    outcome = outcome_of(tmp_path)
    assert (outcome.kind, outcome.message) == (Kind.OOM, said)
    assert len(outcome.stderr_tail) < 40 * 100
    (tmp_path / "stderr.log").write_text("x" * 1_000_000 + said)
    outcome = outcome_of(tmp_path)
    assert (outcome.kind, len(outcome.stderr_tail)) == (Kind.OOM, 500)


def test_of_a_long_line_the_beginning_and_the_end_are_kept() -> None:
    long = "begin" + "x" * 3 * MAX_LINE + "end"
    first, cut, last = cut_lines(f"a\n{long}\nb").split("\n")
    assert (first, last) == ("a", "b")
    assert cut.startswith("beginx") and cut.endswith("xend") and len(cut) == MAX_LINE + 5


def test_a_result_on_a_long_line_is_still_found() -> None:
    numbers = {"status": "ok", "all": list(range(10_000))}
    text = f"noise MESHTUNE_RESULT MESHTUNE_RESULT {json.dumps(numbers)} \nMESHTUNE_RESULT {{\n"
    assert [json.loads(said) for said in objects_after("MESHTUNE_RESULT", text)] == [numbers]


def test_a_users_catastrophic_pattern_ends_its_trial_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "MAX_CPU_S", 1)
    (tmp_path / "stdout.log").write_text("a" * 60 + "b\nspeed 5\n")
    slow = LogFormat({"other": [Pattern("((?:a+)+)$")], "speed": [Pattern(r"speed (\d+)")]})
    outcome = outcome_of(tmp_path, slow)
    assert outcome.kind is Kind.CRASH
