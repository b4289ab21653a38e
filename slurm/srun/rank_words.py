"""Reports of a kept step's shepherds, taken out of the output of their ranks."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass

from slurm import fork_server

LONGEST_LINE_BYTES = 1024  # longer lines are passed on in pieces, as by slurmstepd
_NAME = fork_server.WORD.encode()
# Anywhere: a piece of another rank's long line may stand before it.
_WORD = re.compile(_NAME + rb" (\{[^{}\n]*\})\n")
_MARK, _NEWLINE = fork_server.END_OF_LINE[:1].encode(), fork_server.END_OF_LINE[1:].encode()
_END_OF_LINE = re.compile(_MARK + _NEWLINE + b"?")  # slurmstepd may cut between the two


@dataclass(frozen=True)
class RankEnd:
    """A shepherd's report: the end of a rank."""

    trial: str
    rank: int
    code: int


class RankWords:
    """Reads one of a step's streams: pieces of lines of many ranks, as slurmstepd cuts them.

    A report is a short line, so it comes in one piece, but a read may end within it.
    """

    def __init__(self) -> None:
        self._partial = b""  # the line so far
        self._last = b"\n"  # the last byte that was passed on

    def feed(self, data: bytes) -> tuple[bytes, list[RankEnd]]:
        """The output of ranks that is complete now, and the ends of those behind it.

        ``data`` is empty at the end of the stream.
        """
        text = self._partial + data
        # A progress bar ends its lines by a carriage return.
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        if not data:
            end = len(text)
        elif len(text) - end > LONGEST_LINE_BYTES:
            end = _before_word(text, end)
        text, self._partial = text[:end], text[end:]
        words, text = _WORD.findall(text), _WORD.sub(b"", text)
        text = _END_OF_LINE.sub(self._line_end, text)
        self._last = text[-1:] or self._last
        return text, [rank_end for word in words if (rank_end := _parsed(word))]

    def _line_end(self, mark: re.Match[bytes]) -> bytes:
        """The replacement of a shepherd's end of line: a line feed if the rank left a line open."""
        before = mark.string[: mark.start()][-1:] or self._last
        return b"" if before in (b"\n", b"\r") or mark[0] == _MARK else b"\n"


def _before_word(text: bytes, start: int) -> int:
    """The place where a report may begin in the open line from ``start`` on; else its end."""
    at = text.rfind(_NAME, start)
    if at >= 0:
        return at if len(text) - at <= LONGEST_LINE_BYTES else len(text)
    begun = next((n for n in range(len(_NAME) - 1, 0, -1) if text.endswith(_NAME[:n])), 0)
    return len(text) - begun


def _parsed(word: bytes) -> RankEnd | None:
    with contextlib.suppress(ValueError, KeyError, TypeError):  # another program's line
        end = json.loads(word)
        return RankEnd(str(end["trial"]), int(end["rank"]), int(end["code"]))
    return None
