"""Whatever a file has become, its command works or says in a few lines what is wrong with it.

A valid file of every kind is changed at random: bits, words and lines, and words that are hostile.
The command that reads it then runs here, in this process. It may succeed, or end with code 2 and a
message; nothing else, and within a time that does not grow with what the file says.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import Phase, given, seed, settings

from support.hostile import MUTATIONS, Mutation, mutated
from support.input_kinds import KINDS, Kind
from workflows.cli.main import main

MOST_CPU_S = 20.0  # of a command in its worst case; a hang would be hours
MOST_LINES, LONGEST_LINE = 10, 1200
QUICK = settings(max_examples=12, phases=[Phase.generate])
LONG = settings(max_examples=int(os.environ.get("MESHTUNE_EXAMPLES", "150")))


def outcome(kind: Kind, path: Path) -> list[tuple[int, str]]:
    """Exit code and standard error of everything that reads the file."""
    if kind.reads is not None:
        try:
            kind.reads(path)
        except kind.refused as error:
            return [(2, str(error))]
        return [(0, "")]
    found = []
    for command in kind.commands:
        errors = io.StringIO()
        with (
            contextlib.chdir(path.parents[kind.file.count("/")]),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(errors),
        ):
            code = main(command)
        found.append((code, errors.getvalue()))
    return found


def check(kind: Kind, folder: Path, mutations: Sequence[Mutation]) -> None:
    path = kind.write(folder, mutated(kind.data, mutations))
    started_s = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # numpy's, which a terminal would show
        ends = outcome(kind, path)
    assert time.process_time() - started_s < MOST_CPU_S
    for code, said in ends:
        assert code in (0, 2), said
        assert code == 0 or said.strip(), "refused without a word"
        lines = said.splitlines()
        assert len(lines) <= MOST_LINES
        assert max(map(len, lines), default=0) <= LONGEST_LINE
        assert all(line.isprintable() for line in lines), said


@pytest.mark.parametrize("name", KINDS)
def test_a_valid_file_is_read(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    ends = outcome(kind, kind.write(tmp_path))
    assert [code for code, _ in ends] == [0] * max(1, len(kind.commands)), ends


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_works_or_is_refused(name: str, tmp_path: Path) -> None:
    @QUICK
    @given(MUTATIONS)
    def holds(mutations: list[Mutation]) -> None:
        check(KINDS[name], tmp_path, mutations)

    holds()


@pytest.mark.heavy
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(int(os.environ.get("MESHTUNE_SEEDS", "2"))))
@pytest.mark.parametrize("name", KINDS)
def test_many_damaged_files_work_or_are_refused(name: str, number: int, tmp_path: Path) -> None:
    @seed(number)
    @LONG
    @given(MUTATIONS)
    def holds(mutations: list[Mutation]) -> None:
        check(KINDS[name], tmp_path, mutations)

    holds()
