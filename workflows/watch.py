"""``meshtune watch``: serves the reports of runs on localhost, updated while the searches run.

Nothing is written into a run's folder: a page is made from copies of its journal and its space.
Only this machine can connect, and only requests with the token of the address are answered. Targets
of links in a run's folder are not served.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from analysis import Comparison, RunError, RunFolder, read_run, verdict_lines
from foundation.files import FileError, read_end
from foundation.messages import printable
from foundation.quantities import clock_text, config_text, counted, duration
from search_spaces import SpaceError
from workflows.search.budget import Budget, NodeHours
from workflows.search.panel import node_ranges, of_limit, remaining_s

HOST = "127.0.0.1"
LOOKED_S = 1.0  # between two checks of the journal
ANSWERED_S = 10.0  # timeout of a request
WAITING = 512  # connections that wait to be accepted
REST = 4.0  # pause per second of computing a page: at most a fifth of a core
LOG_BYTES = 1 << 20  # of a log's end
TAIL_LINES, TAIL_BYTES = 12, 4096  # of a running trial's log
_LOG = re.compile(r"trials/(\d{4,})/(stdout\.log|stderr\.log)")
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_NOT_YET = (
    "<!doctype html><meta charset=utf-8><title>meshtune</title>"
    "<body><p>The page is being made ...</p></body>"
)


class PageError(Exception):
    """The page could not be made; the message says why, with the run's own paths."""


class Pages:
    """The latest page of a run, whose folder is only read; ``write`` returns a new page."""

    def __init__(self, run_dir: Path, write: Callable[[Path], Path]) -> None:
        self.run_dir, self._folder = run_dir, RunFolder(run_dir)
        self._write = write
        self._state: tuple[int, int] | None = None  # of the journal, when the page was made
        self._not_before = 0.0
        # The page and its version, replaced together: another thread reads them.
        self.latest: tuple[str, str] = (_NOT_YET, "0")

    def refresh(self) -> bool:
        """Make the page again if the journal has grown and the last page is not too recent.

        Returns whether it was made.

        Raises:
            PageError, OSError: if it could not be made; the next call tries again.
        """
        found = self._folder.journal_file.stat()
        state = (found.st_size, found.st_mtime_ns)
        if state == self._state or time.monotonic() < self._not_before:
            return False
        computed_s = time.process_time()
        try:
            text = self._made()
        finally:
            computed_s = time.process_time() - computed_s
            self._not_before = time.monotonic() + REST * computed_s
        self.latest, self._state = (text, str(int(self.latest[1]) + 1)), state
        return True

    def _made(self) -> str:
        with TemporaryDirectory(prefix="meshtune-watch-") as place:
            copy = Path(place) / self._folder.path.name
            try:
                copy.mkdir()
                for file in (self._folder.journal_file, self._folder.space_file):
                    with suppress(FileNotFoundError):
                        shutil.copyfile(file, copy / file.name)
                (copy / "trials").symlink_to(self._folder.path / "trials")
                return self._write(copy).read_text(errors="replace")
            except OSError:
                raise
            except Exception as error:  # the journal may be half-written
                words = str(error) or type(error).__name__
                raise PageError(words.replace(str(copy), str(self._folder.path))) from error

    def live(self) -> dict[str, Any]:
        """State for readers: running trials with expected times and the ends of their logs."""
        run, now = read_run(self._folder.path), time.time()
        trials = [t for _, t in sorted(run.trials.items()) if t.running]
        budget, expected = Budget(), ["?"] * len(trials)
        with suppress(SpaceError, RunError):
            space = self._folder.frozen_space()
            budget = Budget.of(space)
            expected = NodeHours(space, None).expected_texts(run, [t.config for t in trials])
        rows = []
        for trial, time_text in zip(trials, expected, strict=True):
            attempt = trial.running
            assert attempt is not None
            rows.append(
                {
                    "trial": trial.number,
                    "elapsed": clock_text(max(0.0, now - attempt.started_t)),
                    "expected": time_text,
                    "nodes": printable(node_ranges(attempt.nodes)),
                    "config": printable(config_text(trial.config)),
                    "log": self._tail(trial.number),
                }
            )
        busy = sum(len(t.running.nodes) for t in trials if t.running)
        done = of_limit(len(run.ended), budget.trials, str)
        facts = f"{done} ended, {len(rows)} running on {counted(busy, 'node')}"
        if run.closed is None and (rest_s := remaining_s(run, budget, now)):
            facts += f"; the budget ends in about {duration(rest_s)}"
        if headroom := dict(verdict_lines(run)).get("headroom"):
            facts += f"; {headroom}"
        ended = f"ended: {run.closed}; " if run.closed is not None else ""
        return {"version": self.latest[1], "facts": ended + facts, "running": rows}

    def _tail(self, number: int) -> list[str]:
        found = self._log(f"trials/{number:04d}/stdout.log", TAIL_BYTES) or b""
        return [printable(x) for x in found.decode(errors="replace").splitlines()[-TAIL_LINES:]]

    def _log(self, path: str, most: int) -> bytes | None:
        """The end of a log; None if there is none, or a link leads to it."""
        file = self._folder.path / path
        with suppress(FileError, OSError):
            if file.resolve() == self._folder.path.resolve() / path:
                return read_end(file, most)
        return None

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Type and content of a path below the run's name; None if there is nothing."""
        if path == "report/":
            page, version = self.latest
            served = page.replace("<html ", f'<html data-version="{version}" ', 1)
            return HTML, served.encode("utf-8", "replace")
        if path == "report/live":
            with suppress(RunError, OSError, ValueError):  # a journal that is being written
                return "application/json", json.dumps(self.live()).encode()
        if _LOG.fullmatch(path) and (found := self._log(path, LOG_BYTES)) is not None:
            return "text/plain; charset=utf-8", found
        return None


HTML = "text/html; charset=utf-8"


class Site:
    """The pages of run folders by name, and an index that sets them side by side.

    Later folders of an equal name get a number. ``write`` makes the page of a copy of ``home``.
    """

    def __init__(self, folders: Sequence[Path], write: Callable[..., Path]) -> None:
        self.pages: dict[str, Pages] = {}
        for folder in folders:
            own = name = folder.absolute().name
            for number in range(2, len(folders) + 1):
                name = f"{own}-{number}" if name in self.pages else name
            self.pages[name] = Pages(folder, partial(write, home=folder))

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Type and content of a path below the token; None if there is nothing."""
        path, _, query = path.partition("?")
        every = list(self.pages)
        if not path:
            asked = [n for n in parse_qs(query).get("run", []) if n in every] or every
            compared = Comparison([read_run(self.pages[name].run_dir) for name in asked])
            return HTML, compared.page(asked, every).encode("utf-8", "replace")
        name, _, rest = path.partition("/")
        pages = self.pages.get(unquote(name))
        return pages.answer(rest) if pages else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = WAITING


@contextmanager
def serving(site: Site, port: int = 0) -> Iterator[str]:
    """Serve a site within the context; yields its address. ``port`` 0: any free one.

    The address of a single run is that of its page.
    """
    token = secrets.token_urlsafe(16)
    try:
        server = _Server((HOST, port), _handler(site, token))
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"{HOST}:{port}") from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    own = f"{quote(next(iter(site.pages)))}/report/" if len(site.pages) == 1 else ""
    try:
        yield f"http://{HOST}:{server.server_port}/{token}/{own}"
    finally:
        server.shutdown()
        server.server_close()


def _handler(site: Site, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "meshtune", ""
        timeout = ANSWERED_S

        def do_GET(self) -> None:
            # Another host name comes from a foreign page (DNS rebinding).
            host = (self.headers.get("Host") or "").rpartition(":")[0]
            given, _, path = self.path.removeprefix("/").partition("/")
            known = secrets.compare_digest(given.encode(), token.encode())
            found = site.answer(path) if known and host in (HOST, "localhost") else None
            if found is None:
                self.send_error(404)
                return
            kind, content = found
            self.send_response(200)
            length = {"Content-Type": kind, "Content-Length": str(len(content))}
            for name, value in (length | _HEADERS).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            """Log nothing: a request has the token."""

    return Handler
