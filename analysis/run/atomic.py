"""Files that are replaced whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace ``path`` in one step, so that a reader or a crash never sees half of it."""
    if isinstance(content, str):
        content = content.encode("utf-8", errors="backslashreplace")
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(content)
    part.replace(path)
