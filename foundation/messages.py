"""Text for messages: bounded, without control characters, and without passwords.

Names, values and other programs' output may contain escape sequences that move the cursor or set
colours, and URLs may contain passwords.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

_NOT_LINES = re.compile(r"[^\n\t]+")
_LONGEST_WORD = 100  # compared with known names; similarity is quadratic
_USER = re.compile(r"(?<=://)[^/:@\s]*(?::[^@\s]*)?@(?:[^/@\s]*@)*")  # and password, of a URL
_SECRET = re.compile(r"([?&]\w*(?:password|passwd|pwd|token|secret|key)=)[^&\s]*", re.IGNORECASE)


def printable(text: str) -> str:
    """Text with control and format characters, except line ends and tabs, as escapes.

    >>> printable("loss \\x1b[2J1.5")
    'loss \\\\x1b[2J1.5'
    """
    return text if text.isprintable() else _NOT_LINES.sub(lambda part: _escaped(part[0]), text)


def _escaped(part: str) -> str:
    if part.isprintable():
        return part
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in part)


def without_secrets(text: str) -> str:
    """A text whose URLs lack their users, passwords and secret query values.

    >>> without_secrets("postgresql://me:hush@host/db?sslpassword=hush")
    'postgresql://***@host/db?sslpassword=***'
    """
    if "://" not in text:
        return text
    return _SECRET.sub(r"\1***", _USER.sub("***@", text))


def shown(path: Path | str, most: int = 200) -> str:
    """A file's name, or a URL, for a message: printable, without a password, and short."""
    name = printable(without_secrets(str(path))).replace("\n", "\\n").replace("\t", "\\t")
    return name if len(name) <= most else f"{name[: most // 2]}...{name[-most // 2 :]}"


def listed(names: Iterable[object], most: int = 20) -> str:
    """The first of these names, for a message, and how many more there are."""
    every = [shown(str(name), 60) for name in names]
    more = [f"and {len(every) - most:,} more"] if len(every) > most else []
    return ", ".join([*every[:most], *more])


def message(error: object, lines: int = 10, width: int = 1000) -> str:
    """An error's text for a terminal: bounded, and without control characters."""
    every = [shown(line, width) for line in str(error).split("\n")]
    if len(every) > lines:
        every[lines - 1 :] = [f"and {len(every) - lines + 1:,} lines more"]
    return "\n".join(every)


def first_line(error: BaseException) -> str:
    """The first line of another library's error; its class if it has no text."""
    lines = str(error).strip().splitlines()
    return without_secrets(lines[0]) if lines else type(error).__name__


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known name most similar to ``word``; None if no name is similar."""
    close = difflib.get_close_matches(word[:_LONGEST_WORD], list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def nearest(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` where a known name is similar to ``word``, else nothing."""
    close = closest(word, known)
    return f"; did you mean '{close}'?" if close else ""


def html_table(rows: Mapping[str, str]) -> str:
    """Labels and texts as a notebook shows them."""
    cells = (
        f"<tr><th>{escape(label)}</th><td>{escape(printable(text))}</td></tr>"
        for label, text in rows.items()
    )
    return f"<table>{''.join(cells)}</table>"
