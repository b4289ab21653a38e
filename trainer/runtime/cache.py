"""The user's cache folder, for results that are costly to obtain. Torch-free."""

from __future__ import annotations

import functools
import os
import platform
import tempfile
from pathlib import Path


def user_cache() -> Path:
    """``$XDG_CACHE_HOME/meshtune`` (``~/.cache/meshtune``), else a folder of this process alone."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(home) / "meshtune"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return Path(_own_folder().name)


def cpu_identity() -> str:
    """Identity of this CPU model: nodes that share a home folder may have different CPUs."""
    names = ("flags", "Features", "model name", "CPU part")  # x86-64, then aarch64
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return platform.machine() + platform.processor()
    return "\n".join(line for line in first.splitlines() if line.startswith(names))


@functools.cache
def _own_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="meshtune-")  # removed when the process ends
