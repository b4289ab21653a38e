"""The servers' words among what ranks say, however Slurm and the reader cut it."""

from __future__ import annotations

import json
import random

import pytest

from slurm import fork_server
from slurm.srun.rank_words import LONGEST_LINE_BYTES, RankEnd, RankWords


def pieces(said: bytes, rank: int) -> list[bytes]:
    """What slurmstepd passes on of a rank and its server: lines, cut where they are too long."""
    word = json.dumps({"trial": "run-0001-1", "rank": rank, "code": 0})
    whole = said + f"{fork_server.END_OF_LINE}{fork_server.WORD} {word}\n".encode()
    lines = whole.splitlines(keepends=True)
    return [
        line[at : at + LONGEST_LINE_BYTES]
        for line in lines
        for at in range(0, len(line), LONGEST_LINE_BYTES)
    ]


@pytest.mark.parametrize("seed", range(60))
def test_every_word_is_found_and_nothing_else_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    ranks = [
        b"".join(
            bytes([65 + rank]) * rng.choice([0, 7, 1023, 1024, 1025, 5000])
            + rng.choice([b"\n", b""])
            for _ in range(3)
        )
        for rank in range(5)
    ]
    queues = [pieces(said, rank) for rank, said in enumerate(ranks)]
    stream = b""
    while left := [queue for queue in queues if queue]:
        stream += rng.choice(left).pop(0)
    words, text, ended = RankWords(), b"", []
    while stream:
        size = rng.choice([1, 3, 100, 1500, 65536])
        told, ends = words.feed(stream[:size])
        stream, text, ended = stream[size:], text + told, ended + ends
    text += words.feed(b"")[0]
    assert sorted(end.rank for end in ended) == list(range(5))
    assert set(ended) == {RankEnd("run-0001-1", rank, 0) for rank in range(5)}
    for rank, said in enumerate(ranks):
        letter = bytes([65 + rank])
        assert text.count(letter) == said.count(letter)
    assert text.endswith(b"\n") or not any(ranks)
    assert fork_server.WORD.encode() not in text
    assert set(text) <= {*b"ABCDE\n"}


def test_a_line_that_only_looks_like_a_word_is_passed_on() -> None:
    words = RankWords()
    line = f"{fork_server.WORD} {{not json}}\nand {fork_server.WORD} alone\n".encode()
    told, ended = words.feed(line)
    assert (told, ended) == (f"and {fork_server.WORD} alone\n".encode(), [])
    endless = fork_server.WORD.encode() + b" " + b"." * 3000
    assert words.feed(endless) == (endless, [])
