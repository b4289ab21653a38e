"""Progress of a command that takes longer than a moment."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from types import FrameType

SILENT_S = 1.0


class Working:
    """Shows on standard error what is being done once it has taken a second; a context manager.

    A terminal shows one line, which is removed at the end. A Ctrl-C that a library swallows, as it
    may while it is imported, takes effect at the end.

    Args:
        text: the first step; calling the object with a text announces the next one.
        lines: if standard error is no terminal, print a line for each step.
        at_once: do not wait for the second.
    """

    def __init__(self, text: str, lines: bool = False, at_once: bool = False) -> None:
        self._text, self._lines, self._at_once = text, lines, at_once
        self._lock = threading.Lock()
        self._ended = False
        self._stack = ExitStack()
        self._show: Callable[[str], object] | None = None  # until the second is over
        self._timer = threading.Timer(SILENT_S, self._begin)
        self._timer.daemon = True
        self._interrupted = False

    def __enter__(self) -> Working:
        if self._at_once:  # here, and not in a thread that would have to wait for imports
            self._begin()
        else:
            self._timer.start()
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            with suppress(ValueError):  # only the main thread is interrupted
                signal.signal(signal.SIGINT, self._interrupt)
                self._stack.callback(signal.signal, signal.SIGINT, signal.default_int_handler)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._show = None
            self._ended = True
            self._stack.close()
        if self._interrupted:
            raise KeyboardInterrupt

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True
        signal.default_int_handler(number, frame)

    def __call__(self, text: str) -> None:
        with self._lock:
            self._text = text
            if self._show:
                self._show(text)

    def _begin(self) -> None:
        with self._lock:
            if self._ended:
                return
            if self._lines:
                self._show = _print_line
            if sys.stderr.isatty():
                with _plain(self._text) if self._at_once else nullcontext():
                    from rich.console import Console
                    from rich.markup import escape

                status = Console(stderr=True).status(escape(self._text))
                self._stack.enter_context(status)
                self._show = lambda text: status.update(escape(text))
            if self._show:
                self._show(self._text)


@contextmanager
def _plain(text: str) -> Iterator[None]:
    """Show the text on a terminal while rich, which draws it properly, is imported."""
    line = f"{text} ..."[: shutil.get_terminal_size().columns - 1]
    print(f"{line}\r", end="", file=sys.stderr, flush=True)
    yield
    print(f"{' ' * len(line)}\r", end="", file=sys.stderr, flush=True)


def _print_line(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)
