"""What a trial wrote, made fit for a terminal: it could move the cursor, or set colours and titles.

>>> printable("loss \\x1b[2J1.5")
'loss \\\\x1b[2J1.5'
"""

from __future__ import annotations

import re

_NOT_LINES = re.compile(r"[^\n\t]+")


def printable(text: str) -> str:
    """Text with control and format characters, but line ends and tabs, as escapes: ``\\x1b``."""
    return text if text.isprintable() else _NOT_LINES.sub(lambda part: _escaped(part[0]), text)


def _escaped(part: str) -> str:
    if part.isprintable():
        return part
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in part)
