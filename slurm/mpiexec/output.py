"""Output of an mpiexec: pieces of many ranks' lines, put together and written to the logs.

mpiexec passes on the output that it has of a rank, up to 4 KiB, even if that ends within a line;
another rank's piece follows. With six ranks that printed as fast as they could, 3 to 8 % of all
lines were torn (Open MPI 4.1.4, MPICH 4.0.2), and a result may be one. So mpiexec tags every piece
with its rank, and the tags are removed here.
"""

from __future__ import annotations

import os
import re
import select
import threading
from pathlib import Path

from slurm.log_file import LAST_TRIES_S, LogFile, whole_lines

_POLL_S = 0.2
_MPIEXEC = b""  # in the place of a rank: mpiexec's own words


class LineMerger:
    """Turns tagged pieces into whole lines, in the order in which they are completed.

    Each piece starts with ``tag``, whose one group is the rank.
    """

    def __init__(self, tag: re.Pattern[bytes]) -> None:
        self._tag = tag
        self._unread = b""  # since the last line's end, in which a tag may be incomplete
        self._partial: dict[bytes, bytes] = {}  # rank -> its line so far
        self._current = _MPIEXEC

    def feed(self, data: bytes) -> bytes:
        """Lines that are complete now."""
        self._unread += data
        end = whole_lines(self._unread)
        text, self._unread = self._unread[:end], self._unread[end:]
        return self._merged(text)

    def end(self) -> bytes:
        """The open lines, ended."""
        lines = self._merged(self._unread)
        self._unread = b""
        rest = [part + b"\n" for part in self._partial.values() if part]
        self._partial.clear()
        return lines + b"".join(rest)

    def _merged(self, text: bytes) -> bytes:
        untagged, *tagged = self._tag.split(text)
        lines = self._add(self._current, untagged) if untagged else b""
        for rank, piece in zip(tagged[::2], tagged[1::2], strict=True):
            self._current = rank
            lines += self._add(rank, piece)
        if text.endswith(b"\n"):
            self._current = _MPIEXEC  # a rank's next piece has a tag, even if it is of the same
        return lines

    def _add(self, rank: bytes, piece: bytes) -> bytes:
        line = self._partial.pop(rank, b"") + piece
        end = whole_lines(line)
        if rest := line[end:]:
            self._partial[rank] = rest
        return line[:end]


class OutputPump:
    """Writes the output of an mpiexec to log files, in a thread of its own.

    ``sources`` maps the descriptors to read from to the files; both are the pump's from here on.
    """

    def __init__(self, sources: dict[int, Path], tag: re.Pattern[bytes]) -> None:
        self.problem = ""  # why lines are missing in a log, once they are finished
        self._stop = threading.Event()
        self._open = {source: (LineMerger(tag), LogFile(path)) for source, path in sources.items()}
        for source in self._open:
            os.set_blocking(source, False)
        self._thread = threading.Thread(target=self._run, name="mpiexec output", daemon=True)
        self._thread.start()

    def finish(self, timeout_s: float) -> None:
        """Return when all is in the logs, waiting at most ``timeout_s`` for further writers."""
        self._thread.join(timeout_s)
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while self._open:
            ready, _, _ = select.select(list(self._open), [], [], _POLL_S)
            for source in ready:
                self._pump(source)
            if not ready and self._stop.is_set():
                break
        for source in list(self._open):
            self._close(source)

    def _pump(self, source: int) -> None:
        merger, log = self._open[source]
        data = os.read(source, 1 << 16)
        if data:
            log.write(merger.feed(data))
        else:
            self._close(source)

    def _close(self, source: int) -> None:
        merger, log = self._open.pop(source)
        log.write(merger.end())
        log.close(LAST_TRIES_S)
        self.problem = self.problem or log.problem
        os.close(source)
