"""A file system of a few hundred KiB that can be filled and freed: a tmpfs, which root mounts."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A small file system.

    Args:
        path: where it is mounted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Take all room that is left, the last page of every file apart."""
        with self._ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        """Give it back."""
        self._ballast.unlink()


@contextlib.contextmanager
def small_disk(path: Path, size: str = "512k") -> Iterator[SmallDisk]:
    """Mount one, or skip the test where that is not allowed."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, timeout=250)
    except FileNotFoundError:
        pytest.skip("no small file system: there is no mount")
    if done.returncode != 0:
        pytest.skip(f"no small file system: {done.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=250)
