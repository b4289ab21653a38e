"""Reading the end of a trial's logs, in lines of bounded length.

If lines ended at line feeds only, a progress bar would be one line of megabytes, on which a regular
expression that is quick on a hundred lines may take minutes. So lines also end at carriage returns,
and the middle of longer lines is left out. All of it takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from foundation.files import FileError, MissingFileError, read_end
from foundation.messages import shown

READ_BYTES = 4 << 20  # from the end of a log, which has the cause of a trial's end
MAX_LINE = 8192  # characters
_LONG_LINE = re.compile(rf"(?m)^([^\n]{{{MAX_LINE // 2}}})[^\n]+([^\n]{{{MAX_LINE // 2}}})$")


def read_log(path: Path) -> tuple[str, str]:
    """The end of a log, every line ended by a line feed; and why it cannot be read, or ""."""
    try:
        data = read_end(path, READ_BYTES)
    except MissingFileError:
        return "", ""
    except FileError as error:
        return "", str(error).replace(shown(path), path.name, 1)
    return unified(data).decode(errors="replace"), ""


def unified(data: bytes) -> bytes:
    """The same text with a line feed in place of each carriage return."""
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def cut_lines(text: str) -> str:
    """The same lines; those over :data:`MAX_LINE` characters without their middle."""
    return _LONG_LINE.sub(r"\1 ... \2", text)


def objects_after(word: str, text: str) -> Iterator[str]:
    """JSON objects, not parsed, that follow ``word`` on its line: ``word {...}``."""
    announced = re.compile(rf"(?<!\S){re.escape(word)}[ \t]+(?={{)")
    end = 0
    while found := announced.search(text, end):
        end = text.find("\n", found.end())
        end = len(text) if end < 0 else end
        said = text[found.end() : end].rstrip()
        if said.endswith("}"):
            yield said
