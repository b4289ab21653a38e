"""Mutations of files that people write, as bytes: a slip of the keyboard, or malice.

A mutation is a name, a place (a share of the file) and what is put there; all are plain values, so
that hypothesis can draw, print and shrink them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

# What a scalar is replaced with, or a line inserted from.
WORDS: tuple[bytes, ...] = (
    *(b"", b"-1", b"0", b"1", b"1.5", b"true", b"null", b"''", b"~", b"-0.0", b"3", b"7", b"64"),
    *(b"9" * 400, b"9" * 5000, b"1" + b"0" * 30, b"18446744073709551616", b"9223372036854775808"),
    *(b"1000000000000", b"1000000000", b"1000000", b"100000", b"10000", b"1024", b"-9" * 300),
    *(b"1e400", b"1e18", b"1e-320", b"1e308", b"-1e308", b".nan", b"nan", b"NaN", b".inf", b"inf"),
    *(b"0x10", b"1_000", b"0o17", b"1e9", b"1e-9", b"[]", b"{}", b"[[[]]]", b"[" * 300, b"{" * 300),
    *(b"[1, 2, 4, 8, 16, 32, 64]", b"{range: [1, 10000]}", b"{log2: [1, 1048576]}"),
    *(b"{range: [0.5, 1e15], step: 1e-3}", b"[a, 1, true]", b"{a: {b: c}}", b"true,", b"F_oom"),
    *(b"*a", b"&a [*a]", b"&a x", b"<<: *a", b"!!python/object:os.system x", b"!!binary aGk="),
    *(b"2024-01-01", b"12:30:45", b"|", b"- ", b"?", b"%", b"@", b"`", b"\t", b"\r", b"\\", b"#"),
    *(b"\x00", b"\x1b[31m", b'"\\0"', b'"\\ud800"', b'"\\e[2J"', b"\xff\xfe", b"\xc3", b'"', b"'"),
    *(b"a" * 5000, b"a, " * 2000, "é\u202e\U0001f600".encode(), b"(a+)+$", b"(?P<x>", b"{tp}"),
    *(b"2**10**10 > 1", b"(" * 300 + b"1", b"1 // 0 == 1", b"9" * 300 + b" > 1", b"not " * 200),
    *(b"tp / (mbs - mbs) > 1", b"tp" + b" * tp" * 80 + b" > 0"),
    *(b"/dev/zero", b"/dev/stdin", b"../x.yaml", b"x.yaml", b"/proc/self/mem"),
)
_TOKEN = re.compile(rb"[^\s,:\[\]{}#\"']+")


class Mutation(NamedTuple):
    """One change: what is done, where (a share of the file), and with what."""

    what: str
    where: float
    word: bytes = b""


Means = Callable[[bytes, Mutation], bytes]


def mutated(data: bytes, mutations: Sequence[Mutation]) -> bytes:
    """A file after all changes."""
    for each in mutations:
        data = _MEANS[each.what](data, each)
    return data


def _at(length: int, where: float) -> int:
    return min(int(where * length), max(length - 1, 0))


def _flip(data: bytes, each: Mutation) -> bytes:
    at = _at(len(data), each.where)
    bit = 1 << (len(each.word) % 8)
    return data[:at] + bytes(byte ^ bit for byte in data[at : at + 1]) + data[at + 1 :]


def _lines(
    change: Callable[[list[bytes], int, bytes], object],
) -> Callable[[bytes, Mutation], bytes]:
    def changed(data: bytes, each: Mutation) -> bytes:
        lines = data.splitlines(keepends=True) or [b""]
        change(lines, _at(len(lines), each.where), each.word)
        return b"".join(lines)

    return changed


def _scalar(data: bytes, each: Mutation) -> bytes:
    """Replace one word of the file."""
    tokens = [*_TOKEN.finditer(data)]
    if not tokens:
        return each.word
    token = tokens[_at(len(tokens), each.where)]
    return data[: token.start()] + each.word + data[token.end() :]


_MEANS: dict[str, Means] = {
    "flip a bit": _flip,
    "replace a word": _scalar,
    "insert": lambda data, m: data[: (at := _at(len(data), m.where))] + m.word + data[at:],
    "insert a line": _lines(lambda lines, at, word: lines.insert(at, word + b"\n")),
    "delete a line": _lines(lambda lines, at, word: lines.pop(at)),
    "double a line": _lines(lambda lines, at, word: lines.insert(at, lines[at])),
    "move a line": _lines(lambda lines, at, word: lines.append(lines.pop(at))),
    "cut off": lambda data, m: data[: _at(len(data), m.where)],
    "replace all": lambda data, m: m.word,
}
_SHARES = st.floats(0, 1, allow_nan=False)
_ONE = st.one_of(
    *(
        st.builds(Mutation, st.just("replace a word"), _SHARES, st.sampled_from(WORDS))
        for _ in range(4)  # the likeliest to go deep
    ),
    st.builds(Mutation, st.sampled_from([*_MEANS]), _SHARES, st.sampled_from(WORDS)),
)
MUTATIONS = st.lists(_ONE, min_size=1, max_size=3)
