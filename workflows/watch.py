"""``meshtune watch``: serves a run's report on localhost, updated while the search runs.

Nothing is written into the run's folder: the page is made from copies of its journal and its space.
Only this machine can connect, and only requests with the token of the address are answered.
"""

from __future__ import annotations

import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from analysis import RunFolder
from foundation.files import FileError, read_end

HOST = "127.0.0.1"
LOOKED_S = 1.0  # between two checks of the journal
ANSWERED_S = 10.0  # timeout of a request
REST = 4.0  # pause per second of computing a page: at most a fifth of a core
LOG_BYTES = 1 << 20  # of a log's end
_LOG = re.compile(r"trials/(\d{4,})/(stdout\.log|stderr\.log)")
_POLICY = "default-src 'none';"
_RELOAD = """<script>
setInterval(async () => {
  if (document.hidden || document.activeElement.matches("input, select")) return;
  try {
    const answer = await fetch("version");
    if (answer.ok && (await answer.text()) !== "%s") location.reload();
  } catch { }  // the watch has ended, or this machine sleeps
}, 2000);
</script>"""
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
        self._folder = RunFolder(run_dir)
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

    def served(self) -> str:
        """The page, with a script that reloads it when there is a newer one."""
        page, version = self.latest
        text = page.replace(_POLICY, f"{_POLICY} connect-src 'self';", 1)
        head, end, tail = text.rpartition("</body>")
        return f"{head}{_RELOAD % version}{end}{tail}"

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Type and content of a path below the token; None if there is nothing."""
        if path == "report/":
            return "text/html; charset=utf-8", self.served().encode("utf-8", "replace")
        if path == "report/version":
            return "text/plain; charset=utf-8", self.latest[1].encode()
        log = self._folder.path / path
        if _LOG.fullmatch(path) and not log.parent.is_symlink():  # the trainer's doing
            with suppress(FileError):
                return "text/plain; charset=utf-8", read_end(log, LOG_BYTES)
        return None


@contextmanager
def serving(pages: Pages, port: int = 0) -> Iterator[str]:
    """Serve pages within the context; yields their address. ``port`` 0: any free one."""
    token = secrets.token_urlsafe(16)
    try:
        server = ThreadingHTTPServer((HOST, port), _handler(pages, token))
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"{HOST}:{port}") from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/{token}/report/"
    finally:
        server.shutdown()
        server.server_close()


def _handler(pages: Pages, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "meshtune", ""
        timeout = ANSWERED_S

        def do_GET(self) -> None:
            # Another host name comes from a foreign page (DNS rebinding).
            host = (self.headers.get("Host") or "").rpartition(":")[0]
            given, _, path = self.path.removeprefix("/").partition("/")
            known = secrets.compare_digest(given.encode(), token.encode())
            found = pages.answer(path) if known and host in (HOST, "localhost") else None
            if found is None:
                self.send_error(404)
                return
            kind, content = found
            self.send_response(200)
            length = {"Content-Type": kind, "Content-Length": str(len(content))}
            for name, value in (length | _HEADERS).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Log nothing: a request has the token."""

    return Handler
